"""The behaviour of every `Coordination`: a SQLite file, the simulated ZooKeeper and a real one, one suite."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import pytest

from sparklog.client.local_zookeeper import ZooKeeperProcess, has_java
from sparklog.environment import real_environment
from sparklog.metadata.coordination import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionState,
    SetData,
    Steps,
    drive,
)
from sparklog.metadata.local_coordination import METADATA_FILE, LocalCoordination
from sparklog.testing._sim_zookeeper import SimClient, SimZooKeeper
from tests.system.relay import Relay

SESSION_MS = 1_000
PATIENCE_S = 30


class Store(Protocol):
    """A store with clients, as the suite needs it."""

    def client(self) -> Coordination: ...
    def wait_until(self, condition: Callable[[], bool]) -> None: ...


class Ensemble(Store, Protocol):
    """A ZooKeeper, whose connections break."""

    def lose_answers(self, client: Coordination) -> None:
        """The client's later requests arrive, if at all, and it gets no answer before `cut`."""
        ...

    def cut(self, client: Coordination) -> None:
        """It has no connection until `heal`."""
        ...

    def heal(self, client: Coordination) -> None: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...


class Simulated:
    def __init__(self) -> None:
        self._server = SimZooKeeper(7, session_timeout_ms=SESSION_MS)

    def client(self) -> Coordination:
        client = self._server.client()
        self.wait_until(lambda: client.session_id != 0)
        return client

    def lose_answers(self, client: Coordination) -> None:
        pass  # each request takes its time to arrive, and so does its answer

    def cut(self, client: Coordination) -> None:
        assert isinstance(client, SimClient)
        self._server.cut(client)

    def heal(self, client: Coordination) -> None:
        assert isinstance(client, SimClient)
        self._server.heal(client)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(PATIENCE_S * 100):
            if condition():
                return
            self._server.advance(self._server.now_ms + 10)
        raise AssertionError("it does not come about")

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        pass


class Local:
    """A file has one client, whose connection never breaks."""

    def __init__(self, directory: Path) -> None:
        self._client = LocalCoordination(directory / METADATA_FILE, real_environment())

    def client(self) -> Coordination:
        return self._client

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it does not come about"
            time.sleep(0.001)

    def close(self) -> None:
        self._client.close()


class Real:
    def __init__(self, process: ZooKeeperProcess, path: str) -> None:
        self._process = process
        self._path = path
        self._clients: dict[Coordination, Relay] = {}

    def client(self) -> Coordination:
        from sparklog.metadata.zookeeper import ZooKeeper

        host, _, port = self._process.hosts.rpartition(":")
        relay = Relay(host, int(port))
        client = ZooKeeper.connect(relay.address + self._path, session_timeout_ms=SESSION_MS)
        self._clients[client] = relay
        return client

    def lose_answers(self, client: Coordination) -> None:
        self._clients[client].lose_answers()

    def cut(self, client: Coordination) -> None:
        self._clients[client].cut()

    def heal(self, client: Coordination) -> None:
        self._clients[client].heal()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it does not come about"
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()

    def start(self) -> None:
        self._process.start()

    def close(self) -> None:
        for client, relay in self._clients.items():
            relay.heal()
            client.close()
            relay.close()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    if not has_java():
        pytest.skip("there is no Java: the real ZooKeeper is not tried")
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    process.start()
    yield process
    process.kill()


@pytest.fixture(params=["simulated", "real"])
def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    made: Simulated | Real
    if request.param == "simulated":
        made = Simulated()
    else:
        made = Real(request.getfixturevalue("process"), f"/{tmp_path.name}")
    yield made
    made.close()


@pytest.fixture(params=["local", "simulated", "real"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param != "local":
        made: Local | Simulated | Real = (
            Simulated()
            if request.param == "simulated"
            else Real(request.getfixturevalue("process"), f"/{tmp_path.name}")
        )
    else:
        made = Local(tmp_path)
    yield made
    made.close()


def result(ensemble: Store, future: Future[Any]) -> Any:
    ensemble.wait_until(future.done)
    return future.result()


def failure(ensemble: Store, future: Future[Any]) -> CoordinationError:
    ensemble.wait_until(future.done)
    error = future.exception()
    assert isinstance(error, CoordinationError)
    return error


def test_nodes_have_versions_and_ordered_zxids(store: Store) -> None:
    client = store.client()
    a = result(store, client.create("/a", b"1"))
    assert (a.path, a.data, a.version, a.owner) == ("/a", b"1", 0, 0)
    assert a.czxid == a.mzxid
    b = result(store, client.create("/a/b", b""))
    assert b.czxid > a.czxid
    changed = result(store, client.set_data("/a", b"2", 0))
    assert (changed.data, changed.version, changed.czxid) == (b"2", 1, a.czxid)
    assert changed.mzxid > b.czxid
    assert result(store, client.get("/a")) == changed
    assert result(store, client.children("/a")) == ["b"]
    assert result(store, client.get("/none")) is None
    result(store, client.delete("/a/b", 0))
    assert result(store, client.children("/a")) == []


def test_impossible_operations_are_refused(store: Store) -> None:
    client = store.client()
    result(store, client.create("/a", b""))
    result(store, client.create("/a/b", b""))
    result(store, client.create("/e", b"", ephemeral=True))
    for future, error in (
        (client.create("/a", b""), NodeExistsError),
        (client.create("/x/y", b""), NoNodeError),
        (client.create("/e/y", b""), NoChildrenForEphemeralsError),
        (client.set_data("/x", b""), NoNodeError),
        (client.set_data("/a", b"", 5), BadVersionError),
        (client.children("/x"), NoNodeError),
        (client.delete("/x"), NoNodeError),
        (client.delete("/a"), NotEmptyError),
        (client.delete("/a/b", 5), BadVersionError),
    ):
        assert type(failure(store, future)) is error


def test_calls_of_a_client_take_effect_in_order(store: Store) -> None:
    client = store.client()
    futures = [client.create("/a", b"")] + [client.set_data("/a", bytes([i]), i) for i in range(50)]
    assert [result(store, f).version for f in futures] == list(range(51))


def test_a_transaction_is_atomic(store: Store) -> None:
    client = store.client()
    fence = result(store, client.create("/fence", b"1"))
    ops = [SetData("/fence", b"2", fence.version), Create("/a", b""), Create("/a/b", b"x"), SetData("/a/b", b"y", 0)]
    done = result(store, client.transaction(ops))  # type: ignore[arg-type]
    assert [(r.path, r.version) for r in done] == [("/fence", 1), ("/a", -1), ("/a/b", -1), ("/a/b", 1)]
    node = result(store, client.get("/a/b"))
    assert (node.data, node.mzxid) == (b"y", done[0].mzxid)
    refused = failure(store, client.transaction([Delete("/a/b"), Check("/fence", 0), Delete("/a")]))
    assert (type(refused), refused.index) == (BadVersionError, 1)
    assert result(store, client.get("/a/b")) == node
    missing = failure(store, client.transaction([Create("/c", b""), Delete("/none")]))
    assert (type(missing), missing.index) == (NoNodeError, 1)
    assert result(store, client.get("/c")) is None
    result(store, client.transaction([Check("/fence", 1), Delete("/a/b", 1), Delete("/a")]))
    assert result(store, client.get("/a")) is None


def test_one_of_two_writers_with_the_same_version_is_refused(store: Store) -> None:
    one, two = store.client(), store.client()
    result(store, one.create("/fence", b""))
    futures = [c.transaction([SetData("/fence", b"", 0), Create("/made", b"")]) for c in (one, two)]
    store.wait_until(lambda: all(f.done() for f in futures))
    assert sorted(f.exception() is None for f in futures) == [False, True]


def test_watches_call_once(store: Store) -> None:
    client, other = store.client(), store.client()
    called: list[str] = []
    result(store, client.create("/a", b""))
    assert result(store, client.get("/a", lambda: called.append("data"))) is not None
    assert result(store, client.get("/later", lambda: called.append("later"))) is None
    result(store, client.children("/a", lambda: called.append("children")))
    result(store, other.set_data("/a", b"1"))
    store.wait_until(lambda: called == ["data"])
    result(store, other.set_data("/a", b"2"))
    result(store, other.create("/a/b", b""))
    store.wait_until(lambda: called == ["data", "children"])
    result(store, other.create("/a/c", b""))
    result(store, other.create("/later", b""))
    store.wait_until(lambda: called == ["data", "children", "later"])


def test_a_watch_on_a_node_is_called_when_it_goes(store: Store) -> None:
    client = store.client()
    called: list[str] = []
    result(store, client.create("/a", b""))
    result(store, client.get("/a", lambda: called.append("data")))
    result(store, client.children("/a", lambda: called.append("children")))
    result(store, client.delete("/a"))
    store.wait_until(lambda: sorted(called) == ["children", "data"])


def test_ephemeral_nodes_go_with_their_session(ensemble: Ensemble) -> None:
    client, other = ensemble.client(), ensemble.client()
    node = result(ensemble, other.create("/e", b"", ephemeral=True))
    assert node.owner == other.session_id
    called: list[str] = []
    result(ensemble, client.get("/e", lambda: called.append("gone")))
    other.close()
    ensemble.wait_until(lambda: called == ["gone"])
    assert result(ensemble, client.get("/e")) is None
    assert isinstance(failure(ensemble, other.get("/e")), CoordinationError)


def test_a_session_survives_a_restart_of_the_ensemble_and_its_watches_call(ensemble: Ensemble) -> None:
    client = ensemble.client()
    states: list[SessionState] = []
    called: list[str] = []
    client.listen(states.append)
    session = client.session_id
    node = result(ensemble, client.create("/e", b"", ephemeral=True))
    result(ensemble, client.get("/e", lambda: called.append("lost")))
    ensemble.stop()
    ensemble.wait_until(lambda: states == [SessionState.SUSPENDED])
    ensemble.wait_until(lambda: called == ["lost"])
    ensemble.start()
    ensemble.wait_until(lambda: states[-1] is SessionState.CONNECTED)
    if client.session_id == session:
        assert result(ensemble, client.get("/e")) == node
    else:  # a machine so slow that the session has ended meanwhile
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]


def test_steps_run_with_results_and_errors(store: Store) -> None:
    client = store.client()
    seen: list[Any] = []

    def steps() -> Steps:
        a, b = yield [client.create("/a", b"1"), client.create("/b", b"2")]
        seen.append(a.czxid < b.czxid)
        try:
            yield client.create("/a", b"")
        except NodeExistsError:
            seen.append("exists")
        try:
            yield [client.get("/a"), client.delete("/none")]
        except NoNodeError:
            seen.append("none")
        seen.append((yield []))

    drive(steps())
    store.wait_until(lambda: seen == [True, "exists", "none", []])


def test_a_request_whose_answer_is_lost_has_had_its_effect_or_not(ensemble: Ensemble) -> None:
    """The client cannot know; when it is back it finds one of both, and goes on from there."""
    client, other = ensemble.client(), ensemble.client()
    ensemble.lose_answers(client)
    asked = client.transaction([Create("/once", b"mine"), Create("/twice", b"mine")])
    result(ensemble, other.get("/once"))
    ensemble.cut(client)
    assert isinstance(failure(ensemble, asked), ConnectionLossError)
    ensemble.heal(client)
    found, twice = result(ensemble, client.get("/once")), result(ensemble, client.get("/twice"))
    assert (found is None) is (twice is None)
    again = client.create("/once", b"again")
    if found is None:
        assert result(ensemble, again).data == b"again"
    else:
        assert isinstance(failure(ensemble, again), NodeExistsError)
        assert found.data == b"mine"


def test_a_session_ends_while_its_client_is_cut_off(ensemble: Ensemble) -> None:
    client, other = ensemble.client(), ensemble.client()
    states: list[SessionState] = []
    called: list[str] = []
    client.listen(states.append)
    first = client.session_id
    result(ensemble, client.create("/e", b"", ephemeral=True))
    result(ensemble, client.get("/e", lambda: called.append("once")))
    ensemble.cut(client)
    ensemble.wait_until(lambda: result(ensemble, other.get("/e")) is None)
    ensemble.wait_until(lambda: states == [SessionState.SUSPENDED])  # it is not told before it is back
    ensemble.heal(client)
    ensemble.wait_until(lambda: states[-1] is SessionState.CONNECTED)
    assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert client.session_id not in (0, first)
    ensemble.wait_until(lambda: called == ["once"])
    assert result(ensemble, client.create("/e", b"", ephemeral=True)).owner == client.session_id


# -- what only the simulation can bring about at will


def test_a_silent_client_loses_its_session_and_learns_of_it_when_it_is_back() -> None:
    server = SimZooKeeper(1, session_timeout_ms=SESSION_MS)
    client, other = server.client(), server.client()
    server.advance(1_000)
    states: list[SessionState] = []
    client.listen(states.append)
    first = client.session_id
    client.create("/e", b"", ephemeral=True)
    server.advance(1_500)
    server.cut(client, notice_ms=5_000)
    server.advance(4_000)
    found = other.get("/e")
    server.advance(4_100)
    assert (found.result(), states) == (None, [])
    server.advance(7_000)
    assert states == [SessionState.SUSPENDED]
    server.heal(client)
    server.advance(9_000)
    assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert client.session_id not in (0, first)


def test_a_request_whose_answer_is_lost_may_or_may_not_have_had_an_effect() -> None:
    outcomes = set()
    for seed in range(30):
        server = SimZooKeeper(seed)
        client = server.client()
        server.advance(1_000)
        future = client.create("/a", b"")
        server.cut(client)
        server.advance(1_100)
        assert isinstance(future.exception(), ConnectionLossError)
        server.heal(client)
        found = client.get("/a")
        server.advance(3_000)
        outcomes.add(found.result() is not None)
    assert outcomes == {True, False}


def test_a_request_of_a_session_that_has_ended_has_no_effect() -> None:
    for seed in range(10):
        server = SimZooKeeper(seed)
        client, other = server.client(), server.client()
        server.advance(1_000)
        client.create("/e", b"", ephemeral=True)
        server.end_session(client.session_id)
        server.cut(client)
        found = other.get("/e")
        server.advance(2_000)
        assert found.result() is None


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[Any]:
        server = SimZooKeeper(3)
        seen: list[Any] = []
        for i, client in enumerate([server.client() for _ in range(3)]):
            made = client.create(f"/n{i}", b"")
            made.add_done_callback(lambda f: seen.append((server.now_ms, f.result())))
        server.advance(2_000)
        return seen

    assert run() == run()
    assert len(run()) == 3
