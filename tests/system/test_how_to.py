"""The commands and programs of the how-to pages run, and print the output that the pages show."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.settings import flatten
from tests.spark import pages
from tests.support.cases import for_each
from tests.system.broker_process import readable

FOLDER = pages.ROOT / "docs" / "how-to"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
PATIENCE_S = 60
LANGUAGES = {"node": "node page.js", "java": "java Page.java", "go": "go run page.go"}
SPARK_SESSION = """
import os
from pyspark.sql import SparkSession
servers = os.environ["SPARKLOG_BOOTSTRAP_SERVERS"]
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
"""
"""The session that the pages' Spark programs expect."""


@pytest.fixture(scope="module")
def broker() -> Iterator[sparklog.LocalBroker]:
    """A broker that has the topics of the pages alone."""
    with sparklog.start_local() as started:
        yield started


def blocks(page: str, *kinds: str) -> list[pages.Block]:
    return [block for block in pages.blocks(f"how-to/{page}") if block.kind in kinds]


def text(page: str, kind: str) -> str:
    return "\n".join(block.text for block in blocks(page, kind))


def run(program: str, directory: Path, broker: sparklog.LocalBroker) -> str:
    (directory / "page.py").write_text(program, encoding="utf-8")
    return pages.shell(f"{sys.executable} page.py", directory, broker)


@pytest.mark.nightly
@for_each("page", PAGES)
def test_commands_and_python_programs(page: str, broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    for block in blocks(page, "sh", "python"):
        ran = pages.shell if block.kind == "sh" else run
        out = ran(block.text, tmp_path, broker)
        assert pages.printed(out, block.output) == [line.strip() for line in block.output], block.text


def test_every_program_is_run() -> None:
    """A fenced block without a mark is shown only."""
    shown: dict[str, list[str]] = {}
    for page in PAGES:
        whole = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
        unmarked = re.sub(r"<!-- (?:output|test: [^>]*) -->\n```\w+\n.*?```", "", whole, flags=re.DOTALL)
        shown |= {page: kinds} if (kinds := re.findall(r"(?m)^```(\w+)\n", unmarked)) else {}
    # a broker in the foreground; a command whose checkpoint tests/spark/test_moved_to_a_copy.py makes
    assert shown == {"backup": ["sh"], "copy-in-another-place": ["sh"]}


@pytest.mark.nightly
def test_the_backup_of_a_directory(broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    command = text("backup", "directory")
    assert "\nsleep 2\n" in command
    command = command.replace("127.0.0.1:0 &", "127.0.0.1:0 > listening &")
    command = command.replace("sleep 2", "until grep -q listening listening; do sleep 0.05; done")
    assert "sound" in pages.shell(command, tmp_path, broker)


def test_the_fixture_for_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(text("test-a-job", "pytest"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.nightly
@for_each("language", sorted(LANGUAGES))
def test_producers_of_other_languages(language: str, broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    program, command = text("other-languages", language), LANGUAGES[language]
    if not shutil.which(command.split()[0]):
        pytest.skip(f"{language} is not installed")
    topic = f"cups-{language}"
    pages.shell(text("other-languages", "sh").replace("create cups", f"create {topic}"), tmp_path, broker)
    (tmp_path / command.split()[-1]).write_text(program.replace('"cups", "--quiet"', f'"{topic}", "--quiet"'))
    pages.shell(command, tmp_path, broker, GOCACHE=str(tmp_path / "go"))
    assert sparklog.read_table(broker.bootstrap_servers, topic).num_rows == 1


def test_a_broker_starts_as_in_a_container(tmp_path: Path) -> None:
    config = text("docker-kubernetes", "broker.toml")
    yaml = pytest.importorskip("yaml")
    service, stateful = yaml.safe_load_all(text("docker-kubernetes", "yaml"))
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    (arguments,) = container["args"]
    settings = flatten(tomllib.loads(config))
    port = service["spec"]["ports"][0]["port"]
    assert settings["listen"].endswith(f":{port}")
    assert f":{port} " in arguments
    assert settings["metrics.listen"].endswith(f":{container['readinessProbe']['httpGet']['port']}")

    config = config.replace("/var/lib/sparklog", str(tmp_path / "data")).replace("0.0.0.0", "127.0.0.1")
    (tmp_path / "broker.toml").write_text(re.sub(r":\d+\"", ':0"', config), encoding="utf-8")
    alone = re.sub(r"--zookeeper \S+", "", arguments).replace("/etc/sparklog", str(tmp_path))
    path = f"{pages.BIN}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOSTNAME": "sparklog-2"}
    with subprocess.Popen(
        [*container["command"], alone], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert readable(process.stdout.fileno(), PATIENCE_S)
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert ready.startswith("listening on "), log
    assert "broker 3 serves" in log
    assert process.returncode == 0


@pytest.mark.nightly
@pytest.mark.spark
@for_each("page", [page for page in PAGES if blocks(page, "spark")])
def test_spark_programs(page: str, broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    if page == "read-yesterday":
        pages.shell(text(page, "sh").replace("rides", "spark_rides"), tmp_path, broker)
    program = SPARK_SESSION + text(page, "spark").replace('"rides"', '"spark_rides"')
    wanted = [line for block in blocks(page, "spark") for line in block.output]
    assert pages.printed(run(program, tmp_path, broker), wanted) == wanted


@pytest.mark.nightly
@pytest.mark.spark
def test_the_copies_into_delta(broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    page = "topic-into-delta"
    pages.shell(text(page, "sh").replace("seats", "delta-seats"), tmp_path, broker)
    program = text(page, "delta").replace('"subscribe", "seats"', '"subscribe", "delta-seats"')
    wanted = [line for block in blocks(page, "delta") for line in block.output]
    assert pages.printed(run(program, tmp_path, broker), wanted) == wanted
