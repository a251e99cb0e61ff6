"""Every case runs against sparklog, and in `make parity` against Kafka, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.spark.kafka_parity.checks import Checks
from tests.spark.kafka_parity.jobs import Jobs
from tests.spark.kafka_parity.systems import SparklogSystem, System

PLUGIN = "kafka-parity"
"""The plugin that `python -m tests.spark.kafka_parity` registers: starts Kafka and gathers the results."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "system_name" in metafunc.fixturenames:
        plugin = metafunc.config.pluginmanager.get_plugin(PLUGIN)
        names = ["sparklog"] if plugin is None else plugin.systems
        metafunc.parametrize("system_name", names, indirect=True)


@pytest.fixture
def system_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def system(
    request: pytest.FixtureRequest,
    system_name: str,
    broker: sparklog.LocalBroker,
    admin: sparklog.Admin,
    producer: sparklog.Producer,
) -> System:
    """The log that the case runs against."""
    if system_name == "sparklog":
        return SparklogSystem(broker.bootstrap_servers, admin, producer)
    other: System = getattr(request.config.pluginmanager.get_plugin(PLUGIN), system_name)
    return other


@pytest.fixture
def jobs(spark: Any, system: System, tmp_path: Path) -> Jobs:
    return Jobs(spark, system, tmp_path)


@pytest.fixture
def check(request: pytest.FixtureRequest, system_name: str) -> Checks:
    """Takes the case's checks; the case fails at its end if one was not as expected."""
    return Checks(case_title(request), system_name)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    result = yield
    checks = pyfuncitem.funcargs.get("check")
    if isinstance(checks, Checks):
        plugin = pyfuncitem.config.pluginmanager.get_plugin(PLUGIN)
        if plugin is not None:
            plugin.seen += checks.seen
            for problem in checks.problems:  # the run is a long one: say it at once
                pyfuncitem.config.pluginmanager.get_plugin("terminalreporter").write_line(f"\n{checks.case}: {problem}")  # type: ignore[union-attr]
        checks.finish()
    return result


def case_title(request: pytest.FixtureRequest) -> str:
    """The case's name as words, with its parameters."""
    words = request.function.__name__.removeprefix("test_").replace("_", " ")
    given = getattr(request.node, "callspec", None)
    ids = [] if given is None else [i for i in given.id.split("-") if i not in ("sparklog", "kafka", "gateway")]
    return f"{words} ({'-'.join(ids)})" if ids else words
