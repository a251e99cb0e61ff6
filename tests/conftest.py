"""Common parts of all tests: a clean environment, hypothesis profiles, and one local broker per session."""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.seeds import SEED_BASE, SEED_BASE_VARIABLE

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.client.local import LocalBroker

ROOT = Path(__file__).resolve().parent.parent

# Spark starts Python processes of its own: they must be this Python, which has sparklog and its dependencies.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# What a developer has set for himself must not decide what a test does.
for _name in [n for n in os.environ if n.startswith("SPARKLOG_")]:
    del os.environ[_name]
os.environ.pop("SPARK_HOME", None)
# A shell starts background jobs with SIGINT ignored, and so their children: tests and brokers would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Short lives: a JVM that compiles for long ones takes half as much processor time again.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# `gate` and `ci` are the same on every run, so that a failure is the change's; `torture` searches.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_SAME = settings(derandomize=True, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("gate", _SAME, max_examples=40)
settings.register_profile("ci", _SAME, max_examples=100)
settings.register_profile("torture", max_examples=500, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


HAS_OWN_JVM = "tests/spark/test_killed_write.py"
"""It waits for minutes, and uses no session that others share."""
NIGHTLY_TIMEOUT_S = 900
"""Time of a `nightly` item without a limit of its own: some install packages or compile a client first."""
FIRST = (
    "tests/spark/",
    "tests/system/test_demo_run.py",
    "tests/simulation/",
    "tests/campaigns/torture/",
    "tests/system/",
)
"""Folders whose modules take longest. They are started first, so that no worker is left alone with one at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked `nightly`, too (make test-all)")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run modules, and their tests, in a random order")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seeds from {SEED_BASE} on (repeat: {SEED_BASE_VARIABLE}={SEED_BASE})" if config.getoption("--all") else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the items of longer runs, and put those of long modules first.

    Campaigns (`torture`) run with `-m torture` only, tests marked `nightly` with `--all` or `-m nightly`.
    """
    wanted = config.getoption("-m") or ""
    left_out = (
        {"torture", "nightly"} - set(re.findall(r"\w+", wanted)) - ({"nightly"} if config.getoption("--all") else set())
    )
    long = [item for item in items if any(map(item.get_closest_marker, left_out))]
    if long:
        config.hook.pytest_deselected(items=long)
        gone = set(long)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(NIGHTLY_TIMEOUT_S))
    items.sort(
        key=lambda item: next((i for i, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))
    )
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, random.Random(seed))


def _shuffle(items: list[pytest.Item], rng: random.Random) -> None:
    """Put the modules into a random order, and the tests of each module."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    order = list(modules.values())
    rng.shuffle(order)
    for module in order:
        rng.shuffle(module)
    items[:] = [item for module in order for item in module]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end which tests did not run because this machine lacks something, and what to install."""
    skipped = Counter(
        str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if not hasattr(report, "wasxfail")
    )
    if skipped:
        terminalreporter.section("did not run")
        for reason, count in sorted(skipped.items()):
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''}: {reason}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole modules to workers, and all of tests/spark to one: a JVM costs more than the tests gain."""
    from xdist.scheduler import LoadScopeScheduling

    class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.split("::", 1)[0]
            return "spark" if module.startswith("tests/spark/") and module != HAS_OWN_JVM else module

    return ModuleScheduling(config, log)


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """A test that leaves the log switched off lets others, which wait for a line of it, fail."""
    before = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == before, "the test has left logging switched off, or on"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker process with a data directory of its own, shared by the session: use topics of your own."""
    import sparklog

    with sparklog.start_local(data_dir=tmp_path_factory.mktemp("broker") / "data") as local:
        yield local


@pytest.fixture
def own_threads() -> Callable[[], list[str]]:
    """The names of sparklog's threads that started after the test did: other tests may have left some behind."""
    before = set(threading.enumerate())
    return lambda: [t.name for t in threading.enumerate() if t.name.startswith("sparklog-") and t not in before]


@pytest.fixture
def admin(broker: LocalBroker) -> Iterator[Admin]:
    """An Admin for the session's broker."""
    import sparklog

    with sparklog.Admin(broker.bootstrap_servers) as made:
        yield made


_numbers = itertools.count(1)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes topic names that no other test uses and that name the test."""
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:80].strip("-")
    return lambda: f"{stem}-{next(_numbers)}"


@pytest.fixture
def topic(topic_name: Callable[[], str]) -> str:
    """One unused topic name."""
    return topic_name()
