"""librdkafka's own test runner (C) against a broker with a gateway.

The source comes inside the package of its JavaScript client. `librdkafka.toml` has the version, the tests that are
refused with the reasons, and the tests of the short run. Tests without a broker (local and mock ones) are left out, and
those that wait for an operator. The tests expect three brokers, and create some topics with kafka-topics.sh. Of a test
that cannot pass as a whole, the parts in [parts] run, as `TEST:PART`.
Each test is a process of its own, so that one that hangs does not end the others.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sparklog
from tests.campaigns.gateway_suites.verdict import Verdict, judge
from tests.support.kafka import KafkaInstallation

HERE = Path(__file__).parent
PACKAGE = "@confluentinc/kafka-javascript"
TEST_TIMEOUT_S = 300
PATIENCE = 3
"""Factor of the tests' own time limits: some tests start four JVMs within 20 s."""
ATTEMPTS = 2
"""Runs of a test that fails: some tests give a call one millisecond, which a busy machine exceeds."""
NEEDS = ("npm", "make", "g++", "java", "mvn", "zlib.h", "zstd.h")
"""Programs and headers that the suite needs. A librdkafka without one of the headers lacks a compression."""
KAFKA_VERSION = "4.0.0"
"""Version of the brokers that the runner believes to have."""
LIBRARIES = ("src", "src-cpp")
BROKERS = 3
"""Smallest cluster for all tests: some create topics with three replicas."""
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
"""Main class of each script of Kafka that the tests call."""
_TEST = re.compile(r"^ +_TEST\((\d{4}_\w+),([^;]*?)\)(?:,\n|\n)", re.MULTILINE)
_WITHOUT_BROKER = re.compile(r"\bTEST_F_(LOCAL|MANUAL|KNOWN_ISSUE)\b")


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "librdkafka.toml").read_text(encoding="utf-8"))


def verify(scratch: Path, records: int, pattern: str | None, source: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern` (None: all), and the output of failed ones.

    `source`: directory of a librdkafka that is built already. The number of records is the tests' own.
    """
    told = listed()
    refused = told["refused"]
    directory = build(scratch, told["version"]) if source is None else source
    names = names_of((directory / "tests" / "test.c").read_text(encoding="utf-8"))
    names = [f"{name}:{part}" for name, parts in told["parts"].items() for part in parts] + names
    wanted = [n for n in names if re.search(pattern or "", n) and n not in refused]
    settings = {
        "num.partitions": 4,
        "auto.create.topics.enable": True,
        "authorizer": "acl",  # some tests deny topics with kafka-acls.sh
        "allow.everyone.if.no.acl.found": True,
        "super.users": "User:superuser",
    }
    tools = kafka_tools(scratch)
    with sparklog.start_local(scratch / "data", brokers=BROKERS, kafka=True, settings=settings) as cluster:
        passed, failed, output = run(directory / "tests", cluster.kafka_bootstrap_servers, wanted, scratch, tools)
    return judge(passed, failed, refused), output


def names_of(source: str) -> list[str]:
    """The tests of the runner that need a broker."""
    found = []
    for name, flags in _TEST.findall(source):
        is_without_broker = _WITHOUT_BROKER.search(flags) or "_mock" in name
        if not is_without_broker:
            found.append(name)
    return found


def build(scratch: Path, version: str) -> Path:
    """The directory of the built library and runner."""
    subprocess.run(["npm", "pack", "--silent", f"{PACKAGE}@{version}"], check=True, cwd=scratch, stdout=subprocess.PIPE)
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extractall(scratch, filter="data")
    directory = scratch / "package" / "deps" / "librdkafka"
    for script in ("configure", "lds-gen.py"):
        (directory / script).chmod(0o755)
    features = ["--disable-gssapi", "--disable-curl", "--disable-lz4-ext", "--disable-optimization"]
    jobs = f"-j{os.cpu_count() or 1}"
    for command in (
        ["./configure", *features],
        *(["make", jobs, "-C", part] for part in LIBRARIES),
        ["make", jobs, "-C", "tests", "test-runner"],
    ):
        subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return directory


def kafka_tools(scratch: Path) -> Path:
    """A directory with the scripts of Kafka that the tests call, in bin/."""
    installation = KafkaInstallation()
    installation.install()
    directory = scratch / "kafka" / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    for name, main in TOOLS.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(installation.java(main))} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return directory.parent


def run(
    directory: Path, address: str, names: Iterable[str], scratch: Path, tools: Path
) -> tuple[set[str], set[str], str]:
    """Names of the tests that have passed, and that have failed ATTEMPTS times, and the output of these. `tools`:
    Kafka's directory for the tests that call its scripts."""
    passed, failed, said = set(), set(), []
    config = scratch / "test.conf"
    lines = (f"bootstrap.servers={address}", "test.topic.random=true", f"test.timeout.multiplier={PATIENCE}")
    config.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    variables = {
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_PATH": str(tools),
        "BROKERS": address,
        "LD_LIBRARY_PATH": os.pathsep.join(str(directory.parent / part) for part in LIBRARIES),
    }
    for name in names:
        for _ in range(ATTEMPTS):
            state, output = run_one(directory, name, variables, scratch / f"{name}.json")
            print(f"{name}: {state}", flush=True)
            if state in ("PASSED", "SKIPPED"):
                break
            said.append(f"==== {name}: {state}\n{output[-6_000:]}")
        if state == "PASSED":
            passed.add(name)
        elif state != "SKIPPED":
            failed.add(name)
    return passed, failed, "\n".join(said)


def run_one(directory: Path, name: str, variables: dict[str, str], report: Path) -> tuple[str, str]:
    """The state of one test, or of one part, and its output."""
    test, _, part = name.partition(":")
    given = {"TESTS": test, "TEST_REPORT": str(report)} | ({"SUBTESTS": part} if part else {})
    report.unlink(missing_ok=True)
    try:
        ran = subprocess.run(
            ["./test-runner", "-Q", "-p1"],
            env=os.environ | variables | given,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TEST_TIMEOUT_S,
            check=False,
        )
        output = ran.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as e:
        output = (e.stdout or b"").decode(errors="replace") + f"\nno end within {TEST_TIMEOUT_S} s"
    state = state_of(report, test)
    if part and state == "PASSED" and f"[ {part}:" not in output:
        state = "NOT RUN"  # the runner has no part of this name, and passes
    return state, output


def state_of(report: Path, name: str) -> str:
    """The state of a test in the runner's report."""
    try:
        tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
    except (OSError, ValueError, KeyError):
        return "NO REPORT"
    return str(tests.get(name, {}).get("state", "NOT RUN"))
