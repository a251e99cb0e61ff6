"""What all tests share: a clean environment, hypothesis profiles, and one local broker per session."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

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
# Short lives: a JVM that compiles for long ones takes half as much processor time again.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# `ci` is the same on every run, so that a failure is the change's; `torture` searches.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", derandomize=True, max_examples=100, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("torture", max_examples=2000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long campaigns run only when they are asked for by name (`-m torture`)."""
    if "torture" in (config.getoption("-m") or ""):
        return
    long = [item for item in items if item.get_closest_marker("torture")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


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
