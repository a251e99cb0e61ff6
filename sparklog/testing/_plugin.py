"""The pytest plugin of the test kit. It imports no part of sparklog until a test uses a fixture."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from sparklog.testing._broker import Faults, KitBroker
    from sparklog.testing._sim import Sim
    from sparklog.testing._stream import Stream

MARK = "sparklog"
BROKER = "sparklog_broker"


class _Shape(NamedTuple):
    """The arguments of a mark: the brokers that a test needs."""

    brokers: int = 1
    settings: tuple[tuple[str, object], ...] = ()


_uses_kafka = pytest.StashKey[bool]()
_running = pytest.StashKey["KitBroker | None"]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", "sparklog(brokers=1, settings={}): the brokers of the fixtures sparklog_broker and kafka_broker"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked test the brokers of its mark."""
    marker = metafunc.definition.get_closest_marker(MARK)
    if marker is None or BROKER not in metafunc.fixturenames:
        return
    unknown = set(marker.kwargs) - {"brokers", "settings"}
    if marker.args or unknown:
        raise pytest.UsageError(f"@pytest.mark.{MARK} takes brokers=… and settings={{…}}, not {marker}")
    brokers, settings = marker.kwargs.get("brokers", 1), marker.kwargs.get("settings", {})
    if type(brokers) is not int or brokers < 1:
        raise pytest.UsageError(f"@pytest.mark.{MARK}(brokers={brokers!r}): a number from 1 is needed")
    if not isinstance(settings, Mapping):
        raise pytest.UsageError(f"@pytest.mark.{MARK}(settings={settings!r}): a dict of settings by name is needed")
    shape = _Shape(brokers, tuple(settings.items()))
    metafunc.parametrize(BROKER, [shape], indirect=True, scope="session", ids=[f"brokers={shape.brokers}"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note if a test of the session needs the gateway for Kafka's clients."""
    config.stash[_uses_kafka] = any("kafka_broker" in getattr(item, "fixturenames", ()) for item in items)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Let topics that a fixture for several tests creates live as long as the fixture."""
    broker = request.config.stash.get(_running, None)
    if broker is None or fixturedef.scope == "function":
        return (yield)
    with broker.sharing_topics() as names:
        fixturedef.addfinalizer(partial(_delete_topics, broker, names))  # before the setup: runs after its teardown
        return (yield)


def _delete_topics(broker: KitBroker, names: list[str]) -> None:
    for name in names:
        broker.delete_topic(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Note the topics of fixtures, which outlive the test."""
    broker = item.config.stash.get(_running, None)
    if broker is not None and BROKER in _fixtures_of(item):
        broker.keep_topics()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the effects of a test on the shared broker: its topics, faults, kills, and the time that has passed."""
    broker = item.config.stash.get(_running, None)
    if broker is not None and BROKER in _fixtures_of(item):
        broker.reset()


def _fixtures_of(item: pytest.Item) -> set[str]:
    """Return the fixtures that a test has used, also those of `request.getfixturevalue`."""
    request = getattr(item, "_request", None)
    return {*getattr(item, "fixturenames", ()), *getattr(request, "fixturenames", ())}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the command that runs a failed seed again."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if report.failed and callspec is not None and "seed" in callspec.params:
        report.sections.append(("the same run again", f"pytest '{item.nodeid}'"))
    return report


@pytest.fixture(scope="session")
def sparklog_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KitBroker]:
    """A broker that the session's tests share; with `@pytest.mark.sparklog(brokers=3)` a cluster. Pytest removes the
    data of a session that was killed, as it removes its other temporary directories."""
    from sparklog.testing._broker import KitBroker

    shape = getattr(request, "param", _Shape())
    config = request.config
    with KitBroker(
        shape.brokers,
        kafka=config.stash.get(_uses_kafka, False),
        settings=dict(shape.settings),
        directory=tmp_path_factory.mktemp("sparklog"),
    ) as broker:
        config.stash[_running] = broker
        try:
            yield broker
        finally:
            config.stash[_running] = None


@pytest.fixture(scope="session")
def kafka_broker(sparklog_broker: KitBroker) -> KitBroker:
    """The same broker, with a gateway for Kafka's clients: `kafka_bootstrap_servers`, and KAFKA_BOOTSTRAP_SERVERS in
    the environment of child processes."""
    return sparklog_broker


@pytest.fixture
def broker(sparklog_broker: KitBroker) -> KitBroker:
    """The broker of the fixture `sparklog_broker`."""
    return sparklog_broker


@pytest.fixture
def topic(sparklog_broker: KitBroker) -> Callable[..., str]:
    """Create a topic that the test's end deletes: `topic("clicks", "user STRING, at TIMESTAMP", partitions=2)`."""
    return sparklog_broker.create_topic


@pytest.fixture
def produce(sparklog_broker: KitBroker) -> Callable[..., None]:
    """Append rows to a topic: `produce("clicks", [{"user": "ann"}])`."""
    return sparklog_broker.produce


@pytest.fixture
def rows(sparklog_broker: KitBroker) -> Callable[..., list[dict[str, Any]]]:
    """Return the rows of a topic: `rows("clicks")`."""
    return sparklog_broker.rows


@pytest.fixture
def replay(sparklog_broker: KitBroker) -> Callable[..., str]:
    """Create the topic of a recorded case, with its records: `replay("cases/orders.parquet", speed=60)`."""
    from sparklog.testing._cases import replay

    return lambda case, **options: replay(case, sparklog_broker, **options)


@pytest.fixture
def sim() -> Iterator[Sim]:
    """A simulated cluster for programs: `sim.run(app, seed=seed)`."""
    from sparklog.testing._sim import Sim

    simulated = Sim()
    yield simulated
    simulated.close()


@pytest.fixture
def faults(sparklog_broker: KitBroker) -> Faults:
    """The faults that the test can order: `faults.refuse("PRODUCE", error="NOT_LEADER", times=3)`."""
    return sparklog_broker.faults


@pytest.fixture(scope="session")
def spark_settings() -> Mapping[str, str]:
    """Settings of the fixture `spark` beside those of the kit. A fixture of the same name in a conftest.py replaces it,
    with settings such as `spark.jars.packages`."""
    return {}


@pytest.fixture(scope="session")
def spark(sparklog_broker: KitBroker, spark_settings: Mapping[str, str]) -> Iterator[Any]:
    """A Spark session with settings for short tests, which the session's tests share. With SPARK_REMOTE in the
    environment it is a session of Spark Connect. It begins after the broker, whose address its processes inherit."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from sparklog.testing._spark import start_session

    session = start_session(spark_settings)
    yield session
    session.stop()


@pytest.fixture
def stream(spark: Any, sparklog_broker: KitBroker, tmp_path: Path) -> Iterator[Stream]:
    """Run streaming queries step by step: `stream.run(query)`."""
    from sparklog.testing._stream import Stream

    streams = Stream(spark, sparklog_broker, tmp_path / "streams")
    yield streams
    streams.stop()
