"""Security records that a controller writes: into the file of one broker, and into ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from sparklog.errors import InvalidConfigError, PolicyViolationError, SparklogError
from sparklog.metadata.controller_session import ControllerSession
from sparklog.replication.cluster_image import ClusterDelta, ClusterImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import AlterSecurity, Answer, Effect, Publish, Refuse
from sparklog.replication.image_codec import decode_delta, decode_image, encode
from sparklog.security.records import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    KEY_CHARS_MAX,
    RECORDS_MAX,
    VALUE_BYTES_MAX,
    RecordChanges,
    RecordId,
    RecordKind,
    of_kind,
)
from sparklog.testing._sim_zookeeper import SimZooKeeper
from tests.support.metadata import ControlledStore

PATIENCE_MS = 60_000


class RecordStore(Protocol):
    def change(self, changes: RecordChanges) -> None: ...
    def records(self) -> dict[RecordId, bytes]: ...
    def reopen(self) -> None: ...


class OneBroker:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = ControlledStore(directory)

    def change(self, changes: RecordChanges) -> None:
        self._store.ask(lambda token: AlterSecurity(token, changes))

    def records(self) -> dict[RecordId, bytes]:
        return dict(self._store.image.security)

    def reopen(self) -> None:
        self._store.close()
        self._store = ControlledStore(self._directory)


class ZooKeeperCluster:
    """A controller on a simulated ZooKeeper, and a broker that gets its deltas as bytes."""

    def __init__(self, _directory: Path) -> None:
        self._server = SimZooKeeper(11)
        self._answers: dict[object, SparklogError | None] = {}
        self._asked = 0
        self._open()

    def _open(self) -> None:
        self._client = self._server.client()
        self.controller = Controller()
        self._session = ControllerSession(
            self._client, 1, self.controller, lambda: self._server.now_ms, self._on_effect
        )
        self._session.start()
        self._until(lambda: self.controller.image is not None)
        image = self.controller.image
        assert image is not None
        self.follower = decode_image(encode(image))

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Answer):
            self._answers[effect.token] = None
        elif isinstance(effect, Refuse):
            self._answers[effect.token] = effect.error
        elif isinstance(effect, Publish):
            self.follower = self.follower.apply(decode_delta(encode(effect.delta)), effect.image.version)

    def _until(self, condition: Callable[[], bool]) -> None:
        end_ms = self._server.now_ms + PATIENCE_MS
        while not condition():
            assert self._server.now_ms < end_ms
            self._server.advance(self._server.now_ms + 10)

    def ask(self, changes: RecordChanges) -> int:
        self._asked += 1
        self._session.handle(AlterSecurity(self._asked, changes))
        return self._asked

    def answer(self, token: int) -> SparklogError | None:
        self._until(lambda: token in self._answers)
        return self._answers[token]

    def change(self, changes: RecordChanges) -> None:
        error = self.answer(self.ask(changes))
        if error is not None:
            raise error

    def records(self) -> dict[RecordId, bytes]:
        assert self.controller.image is not None
        assert self.follower.security == self.controller.image.security, "every broker has what the controller has"
        return dict(self.follower.security)

    def reopen(self) -> None:
        self._client.close()
        self._open()


STORES: dict[str, Callable[[Path], RecordStore]] = {"local": OneBroker, "zookeeper": ZooKeeperCluster}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RecordStore:
    return STORES[request.param](tmp_path)


def rid(key: str, kind: str = "users") -> RecordId:
    return RecordId(kind, key)


def test_stored_records_survive_reopening(store: RecordStore) -> None:
    keys = ["alice", "CN=a/b,O=x y", "..", ".", "%2F", "ü", "x" * KEY_CHARS_MAX, "a+b", "zookeeper"]
    store.change({rid(key, kind): f"{kind} {key}".encode() for key in keys for kind in RecordKind})
    before = store.records()
    assert of_kind(before, RecordKind.ACLS) == {key: f"acls {key}".encode() for key in keys}
    assert len(before) == len(keys) * len(RecordKind)
    store.reopen()
    assert store.records() == before


def test_a_change_replaces_and_takes_away_together(store: RecordStore) -> None:
    store.change({rid("a"): b"1", rid("b"): b"1", rid("a", "acls"): b"1"})
    store.change({rid("a"): b"2", rid("b"): None, rid("c"): b"", rid("never there"): None})
    expected = {rid("a"): b"2", rid("c"): b"", rid("a", "acls"): b"1"}
    assert store.records() == expected
    store.reopen()
    assert store.records() == expected


@pytest.mark.parametrize(
    "changes",
    [
        {rid("x", "passwords"): b"1"},
        {rid(""): b"1"},
        {rid("x" * (KEY_CHARS_MAX + 1)): b"1"},
        {rid("a\nb"): b"1"},
        {rid("x"): b"1" * (VALUE_BYTES_MAX + 1)},
    ],
    ids=["kind", "empty key", "long key", "control character", "long value"],
)
def test_an_invalid_record_refuses_its_whole_change(store: RecordStore, changes: RecordChanges) -> None:
    with pytest.raises(InvalidConfigError):
        store.change({rid("good"): b"1", **changes})
    assert store.records() == {}


def test_one_change_is_bounded(store: RecordStore) -> None:
    with pytest.raises(PolicyViolationError, match="at a time"):
        store.change({rid(str(i)): b"" for i in range(CHANGES_MAX + 1)})
    with pytest.raises(PolicyViolationError, match="at a time"):
        store.change({rid(str(i)): bytes(VALUE_BYTES_MAX) for i in range(CHANGE_BYTES_MAX // VALUE_BYTES_MAX + 1)})
    assert store.records() == {}


def test_all_records_are_bounded_and_can_be_taken_away_then(store: RecordStore) -> None:
    names = [rid(str(i)) for i in range(RECORDS_MAX)]
    for start in range(0, RECORDS_MAX, CHANGES_MAX):
        store.change(dict.fromkeys(names[start : start + CHANGES_MAX], b"1"))
    with pytest.raises(PolicyViolationError, match="remove some"):
        store.change({rid("one more"): b"1"})
    store.change({names[0]: None, rid("one more"): b"1"})
    assert len(store.records()) == RECORDS_MAX


def test_the_bytes_of_all_records_are_bounded(store: RecordStore) -> None:
    big = b"1" * VALUE_BYTES_MAX
    with pytest.raises(PolicyViolationError, match="remove some"):
        for i in range(100):
            store.change({rid(str(i)): big})
    assert 50 < len(store.records()) < 64


def test_many_changes_at_once_become_writes_that_zookeeper_takes(tmp_path: Path) -> None:
    cluster = ZooKeeperCluster(tmp_path)
    tokens = [cluster.ask({rid(f"{i} {j}"): b"1" * 60_000 for j in range(8)}) for i in range(6)]
    assert [cluster.answer(token) for token in tokens] == [None] * 6
    assert len(cluster.records()) == 48


def test_a_late_image_takes_no_record_back() -> None:
    image = ClusterImage().apply(ClusterDelta(security={rid("a"): b"2"}), Version(1, 5))
    assert image.apply(ClusterDelta(security={rid("a"): b"1"}), Version(1, 4)).security == {rid("a"): b"2"}


def test_an_existing_secret_stays(store: RecordStore) -> None:
    """Two brokers create one at the same time: everything derived from the first one stays valid."""
    secret, other = RecordId(RecordKind.SECRETS, "s"), RecordId(RecordKind.USERS, "u")
    store.change({secret: b"first"})
    store.change({secret: b"second", other: b"u"})
    store.change({secret: b"third"})
    assert store.records() == {secret: b"first", other: b"u"}
    store.change({secret: None})
    store.change({secret: b"new"})
    store.reopen()
    assert store.records() == {secret: b"new", other: b"u"}
