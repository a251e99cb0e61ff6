"""aiokafka's own integration tests (Python) against a broker with a gateway.

The tests start a container with Kafka. `stand_ins/docker.py` is imported in place of Docker's client, and starts a
sparklog broker. The client is the installed one, with its C extension. `aiokafka.toml` has the version, the tests that
are refused, and the lines of the tests that are replaced, with the reasons.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from tests.campaigns.gateway_suites.mending import mend
from tests.campaigns.gateway_suites.python_suites import PythonSuite, Source, checkout, install_packages
from tests.campaigns.gateway_suites.verdict import Verdict

HERE = Path(__file__).parent
NEEDS = ("git", "openssl", "keytool")
"""Programs that the suite needs."""
OF_BROKER = "KafkaIntegrationTestCase"
"""Text of the files whose tests need a broker."""
OPTIONS = ("--no-pull", "-o", "asyncio_default_fixture_loop_scope=function")


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "aiokafka.toml").read_text(encoding="utf-8"))


def source() -> Source:
    """The suite's source."""
    return Source("https://github.com/aio-libs/aiokafka", listed()["version"])


def verify(scratch: Path, records: int, pattern: str | None, built: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern` (None: all), and their output. `built`: directory of a
    source that is there already. The number of records is the tests' own."""
    listing = listed()
    directory = checkout(source(), scratch / "aiokafka") if built is None else built
    (directory / "aiokafka").rename(scratch / "aiokafka-client")  # the installed client has the C extension
    mend(directory, listing["mended"], "aiokafka.toml")
    files = [path.relative_to(directory) for path in sorted((directory / "tests").glob("test_*.py"))]
    tests = [str(path) for path in files if OF_BROKER in (directory / path).read_text(encoding="utf-8")]
    paths = HERE / "stand_ins", install_packages(listing["packages"], scratch / "packages")
    variables = {
        "PATH": os.pathsep.join((str(_keytab_program(scratch / "bin")), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
    }
    options = (*OPTIONS, "--docker-image", f"sparklog:{listing['kafka_version']}")
    return PythonSuite(directory, tests, variables, options).verify(pattern, listing["refused"])


def _keytab_program(directory: Path) -> Path:
    """Write a `ktutil` that does nothing, because each class of tests first makes a keytab for Kerberos."""
    directory.mkdir()
    program = directory / "ktutil"
    program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    program.chmod(0o755)
    return directory
