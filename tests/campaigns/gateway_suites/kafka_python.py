"""kafka-python's own integration tests (Python) against brokers with a gateway.

Each module of the tests starts a Kafka of its own with Kafka's scripts; `kafka_server.py` has them start a sparklog
broker. `kafka_python.toml` has the version, and the tests that are refused with the reasons.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from tests.campaigns.gateway_suites import kafka_server
from tests.campaigns.gateway_suites.python_suites import PythonSuite, Source, checkout, install_packages
from tests.campaigns.gateway_suites.verdict import Verdict

HERE = Path(__file__).parent
NEEDS = ("git", "java", "mvn", "openssl", "keytool")
"""Programs that the suite needs; mvn brings kafka-topics.sh, which two tests call."""


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "kafka_python.toml").read_text(encoding="utf-8"))


def source() -> Source:
    """The suite's source."""
    return Source("https://github.com/dpkp/kafka-python", listed()["version"])


def verify(scratch: Path, records: int, pattern: str | None, built: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern` (None: all), and their output. `built`: directory of a
    source that is there already. The number of records is the tests' own."""
    listing = listed()
    directory = checkout(source(), scratch / "kafka-python") if built is None else built
    packages = install_packages(listing["packages"], scratch / "packages")
    variables = {
        "KAFKA_VERSION": listing["kafka_version"],
        "KAFKA_ROOT": str(kafka_server.install(scratch / "kafka")),
        "PYTHONPATH": os.pathsep.join((str(directory), str(packages))),
    }
    return PythonSuite(directory, ["test/integration"], variables).verify(pattern, listing["refused"])
