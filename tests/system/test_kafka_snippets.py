"""The examples of docs/kafka-clients.md in Java, Go, JavaScript and the shell, run where the tool is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from tests.campaigns.gateway_suites import franz_go
from tests.support.kafka import KafkaInstallation

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-clients.md"
ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 600
KAFKAJS = "kafkajs@2"
JAVA = """import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
class Example { public static void main(String[] given) throws Exception { %s } }
"""
GO = """package main
import ("context"; "github.com/twmb/franz-go/pkg/kgo")
func main() { %s }
"""
JAVASCRIPT = "(async () => { %s })()"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("snippets") / "data", kafka=True) as local:
        yield local


def snippet(language: str, mark: str, address: str) -> str:
    """The first block in `language` behind the bold word `mark`."""
    page = PAGE.read_text(encoding="utf-8")
    block = page.split(f"**{mark}**")[1].split(f"```{language}\n")[1].split("```")[0]
    assert ADDRESS in block
    return block.replace(ADDRESS, address)


def needs(*programs: str) -> None:
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def ran(command: list[str] | str, directory: Path) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        shell=isinstance(command, str),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def java(address: str, directory: Path) -> bytes:
    needs("java", "mvn")
    installation = KafkaInstallation()
    installation.install()
    (directory / "Example.java").write_text(JAVA % snippet("java", "Java", address), encoding="utf-8")
    ran(["java", "-cp", f"{installation.libs}/*", "Example.java"], directory)
    return b"value"


def go(address: str, directory: Path) -> bytes:
    needs("go")
    (directory / "main.go").write_text(GO % snippet("go", "Go", address), encoding="utf-8")
    ran(["go", "mod", "init", "example"], directory)
    ran(["go", "get", f"{franz_go.MODULE}/pkg/kgo@{franz_go.listed()['version']}"], directory)
    ran(["go", "run", "."], directory)
    return b"hello"


def javascript(address: str, directory: Path) -> bytes:
    needs("node", "npm")
    ran(["npm", "install", "--silent", "--no-audit", KAFKAJS], directory)
    (directory / "main.js").write_text(JAVASCRIPT % snippet("javascript", "JavaScript", address), encoding="utf-8")
    ran(["node", "main.js"], directory)
    return b"value"


def kcat(address: str, directory: Path) -> bytes:
    needs("kcat")
    assert "hello" in ran(snippet("sh", "kcat", address), directory)
    return b"hello"


@pytest.mark.parametrize("example", [java, go, javascript, kcat], ids=lambda example: str(example.__name__))
def test_the_example_sends_a_record(example: Callable[[str, Path], bytes], kafka: LocalBroker, tmp_path: Path) -> None:
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        if "events" not in admin.list_topics():
            admin.create_topic("events")  # not every client creates a missing topic

    def values() -> list[bytes]:
        found: list[bytes] = sparklog.read_table(kafka.bootstrap_servers, "events")["value"].to_pylist()
        return found

    before = len(values())
    sent = example(kafka.kafka_bootstrap_servers, tmp_path)
    assert values()[before:] == [sent]
