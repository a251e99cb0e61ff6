"""Common behaviour of all metadata stores; a new store joins by adding itself to `STORES`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata.image_store import IdBlocks
from sparklog.metadata.producer_ids import BLOCK_IDS, SMALL_BLOCK_IDS, ProducerIds
from sparklog.metadata.store import TopicSpec
from sparklog.security.owned_ids import owned_id
from sparklog.security.principals import user
from tests.support.metadata import ControlledStore

SCHEMA = pa.schema([("id", pa.uint32()), ("name", pa.large_string()), ("at", pa.timestamp("ns", "Europe/Paris"))])


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[], ControlledStore]:
    """Opens the store of this test; called again, the same one."""
    return lambda: ControlledStore(tmp_path)


def test_an_envelope_topic(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    topic = store.create_topic(TopicSpec("events", partitions=3))
    assert (topic.name, topic.kind, topic.partitions, topic.key_columns) == ("events", "envelope", 3, ())
    assert (topic.timestamp_column, topic.record_timestamp_column) == (None, "timestamp")
    assert dict(topic.schemas) == {1: ENVELOPE_SCHEMA}
    assert len(topic.topic_id) == 32
    assert int(topic.topic_id, 16) >= 0
    assert store.topics() == {"events": topic}
    store.close()


def test_schema_ids_are_never_issued_twice(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    schema = pa.schema([("a", pa.int32())])
    first = store.create_topic(TopicSpec("a", schema=schema))
    store.delete_topic("a")
    with pytest.raises(InvalidTopicError):
        store.create_topic(TopicSpec("b", schema=schema, key_columns=["x"]))
    store.close()
    store = open_store()
    again = store.create_topic(TopicSpec("a", schema=schema))
    assert [*first.schemas, *again.schemas] == [2, 4], "an id of a topic that was refused is not given out either"
    store.close()


def test_a_typed_topic_has_the_canonical_schema(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    topic = store.create_topic(
        TopicSpec("typed", 2, SCHEMA, ["id", "name"], "at", {"segment.bytes": "1048576", "segment.ms": 5})
    )
    assert topic.schemas[2] == pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    assert topic.key_columns == ("id", "name")
    assert topic.timestamp_column == topic.record_timestamp_column == "at"
    assert dict(topic.configs) == {"segment.bytes": 1048576, "segment.ms": 5, "kafka.key.format": "json"}
    store.close()


def test_all_topics_survive_reopening(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    store.create_topic(TopicSpec("b", 2, SCHEMA, ["id"], "at", {"segment.ms": 5}))
    store.create_topic(TopicSpec("a"))
    store.create_topic(TopicSpec("gone"))
    store.delete_topic("gone")
    before, deleted = store.topics(), dict(store.image.deleted)
    store.close()
    store = open_store()
    assert store.topics() == before
    assert set(before) == {"a", "b"}
    assert [d.name for d in deleted.values()] == ["gone"]
    assert store.image.deleted == deleted
    store.close()


def test_delete_and_create_again_gives_a_new_id(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    first = store.create_topic(TopicSpec("events"))
    with pytest.raises(TopicAlreadyExistsError, match="events"):
        store.create_topic(TopicSpec("events"))
    store.delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="events"):
        store.delete_topic("events")
    assert store.create_topic(TopicSpec("events")).topic_id != first.topic_id
    store.close()


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (TopicSpec("a/b"), InvalidTopicError, "a/b"),
        (TopicSpec(""), InvalidTopicError, "cannot be named"),
        (TopicSpec("t", 0), InvalidPartitionsError, "use 1 to 10000"),
        (TopicSpec("t", 10_001), InvalidPartitionsError, "10001"),
        (TopicSpec("t", True), InvalidPartitionsError, "True"),
        (TopicSpec("t", key_columns=["key"]), InvalidTopicError, "envelope"),
        (TopicSpec("t", timestamp_column="timestamp"), InvalidTopicError, "envelope"),
        (TopicSpec("t", schema=pa.schema([])), InvalidTopicError, "columns"),
        (TopicSpec("t", schema=SCHEMA, key_columns=["nope"]), InvalidTopicError, "nope"),
        (TopicSpec("t", schema=SCHEMA, timestamp_column="name"), InvalidTopicError, "must be a timestamp"),
        (TopicSpec("t", configs={"segment.byte": 1}), InvalidConfigError, "did you mean 'segment.bytes'"),
        (TopicSpec("t", configs={"segment.bytes": 1}), InvalidConfigError, "at least 4096"),
        (TopicSpec("t", configs={"linger.ms": 1}), InvalidConfigError, r"linger\.ms"),
        (
            TopicSpec("t", configs={"kafka.key.format": "xml"}),
            InvalidConfigError,
            "use one of empty, json, text, avro, p",
        ),
        (TopicSpec("t", configs={"kafka.key.format": "json"}), InvalidConfigError, "an envelope topic are bytes"),
        (
            TopicSpec("t", schema=SCHEMA, configs={"kafka.key.format": "json"}),
            InvalidConfigError,
            "the topic has no key columns",
        ),
        (
            TopicSpec("t", schema=SCHEMA, key_columns=["id"], configs={"kafka.key.format": "text"}),
            InvalidConfigError,
            "only one key column of text",
        ),
        (
            TopicSpec("t", schema=SCHEMA, key_columns=["name", "id"], configs={"kafka.key.format": "text"}),
            InvalidConfigError,
            "only one key column of text",
        ),
    ],
)
def test_an_invalid_topic_is_refused(
    open_store: Callable[[], ControlledStore], spec: TopicSpec, error: type[SparklogError], message: str
) -> None:
    store = open_store()
    with pytest.raises(error, match=message):
        store.create_topic(spec)
    assert store.topics() == {}
    store.close()


@pytest.mark.parametrize(
    ("keys", "configs", "form"),
    [
        (["id"], {}, "json"),
        (["name"], {}, "text"),
        (["name", "id"], {}, "json"),
        (["name"], {"kafka.key.format": "json"}, "json"),
        (["id"], {"kafka.key.format": ""}, None),
        ([], {}, None),
    ],
)
def test_a_new_topic_gets_the_form_of_its_keys(
    open_store: Callable[[], ControlledStore], keys: list[str], configs: dict[str, object], form: str | None
) -> None:
    store = open_store()
    topic = store.create_topic(TopicSpec("t", 1, SCHEMA, keys, configs=configs))
    assert topic.configs.get("kafka.key.format") == form
    store.close()


def test_the_answer_cannot_change_the_store(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    topic = store.create_topic(TopicSpec("events"))
    store.topics().clear()
    assert "events" in store.topics()
    with pytest.raises(TypeError):
        topic.schemas[2] = SCHEMA  # type: ignore[index]
    store.close()


WIDER = SchemaChange(add=pa.schema([("extra", pa.large_string())]), widen=pa.schema([("n", pa.int64())]))


def test_a_newer_schema_gets_a_newer_id_and_the_old_ones_stay(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    old = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    created = store.create_topic(TopicSpec("t", 1, old, ["id"]))
    other = store.create_topic(TopicSpec("other", 1, old))
    altered = store.alter_schema("t", WIDER)
    new = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("extra", pa.string())])
    assert altered.schema_id > max(created.schema_id, other.schema_id)
    assert dict(altered.schemas) == {created.schema_id: old, altered.schema_id: new}
    assert store.alter_schema("t", WIDER) == altered  # it is there already
    later = store.create_topic(TopicSpec("later", 1, old))
    assert later.schema_id > altered.schema_id
    before = store.topics()
    store.close()
    store = open_store()
    assert store.topics() == before
    assert store.topics()["t"] == altered
    store.close()


def test_a_refused_change_of_schema_has_no_effect(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    topic = store.create_topic(TopicSpec("t", 1, pa.schema([("id", pa.int32()), ("n", pa.string())]), ["id"]))
    store.create_topic(TopicSpec("envelope"))
    for change in (WIDER, SchemaChange(widen=pa.schema([("id", pa.int64())]))):
        with pytest.raises(InvalidTopicError, match="topic 't': the schema cannot be changed like this: column"):
            store.alter_schema("t", change)
    with pytest.raises(InvalidTopicError, match="envelope topic"):
        store.alter_schema("envelope", WIDER)
    with pytest.raises(UnknownTopicOrPartitionError):
        store.alter_schema("missing", WIDER)
    assert store.topics()["t"] == topic
    store.close()


def test_producer_ids_are_never_issued_twice(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    assert [store.ids.take_producer_ids(n) for n in (1000, 5, 1000)] == [0, 1000, 1005]
    other = IdBlocks(store.coordination)  # as another broker of the cluster
    assert other.take_producer_ids(10) == 2005
    assert store.ids.take_producer_ids(10) == 2015
    store.close()
    store = open_store()
    assert store.ids.producer_ids_end() == 2025
    assert store.ids.take_producer_ids(1) == 2025
    assert store.ids.take_producer_ids(10, at_least=5000) == 5000
    assert store.ids.take_producer_ids(10, at_least=5000) == 5010
    assert store.ids.producer_ids_end() == 5020
    store.close()


def test_producer_ids_come_in_blocks_in_order_to_many_threads() -> None:
    taken: list[int] = []

    def take_block(count: int, at_least: int) -> int:
        taken.append(count)
        return 1_000_000 * len(taken)

    ids = ProducerIds(take_block, block_ids=SMALL_BLOCK_IDS)
    assert ids.remaining == 0
    assert ids.next() == 1_000_000
    assert ids.remaining == SMALL_BLOCK_IDS - 1
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: [ids.next() for _ in range(1000)], range(4)))
    assert all(one == sorted(one) for one in found)
    assert len({i for one in found for i in one}) == 4000
    assert taken == [SMALL_BLOCK_IDS] * 5


class Blocks:
    """As a store reserves them."""

    def __init__(self, end: int = 0) -> None:
        self.end = end

    def take(self, count: int, at_least: int) -> int:
        first = max(self.end, at_least)
        self.end = first + count
        return first


def test_only_granted_ids_count_as_issued() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take)
    assert not ids.is_issued(0)
    assert [ids.next(), ids.reserve(), ids.next()] == [0, 1, 2]
    assert [n for n in (-1, 0, 1, 2, 3, BLOCK_IDS, 2**63 - 1) if ids.is_issued(n)] == [0, 2]
    ids.hand_out(1)
    assert ids.is_issued(1)
    restarted = ProducerIds(blocks.take, blocks.end)
    assert restarted.is_issued(2)
    assert not restarted.is_issued(BLOCK_IDS)
    assert restarted.next() == BLOCK_IDS


def test_an_owned_id_is_issued_if_its_number_is() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take)
    number = ids.next()
    alice = user("alice")
    assert ids.is_issued(owned_id(b"secret", number, alice))
    assert not ids.is_issued(owned_id(b"secret", number + 1, alice))
    ids.note_used(owned_id(b"secret", 7_000_000, alice))
    assert ids.next() == number + 1


def test_ids_in_use_are_not_issued_again() -> None:
    """The store was restored from an older copy; and somebody has written with an id that he had made up."""
    blocks = Blocks(2000)
    ids = ProducerIds(blocks.take, blocks.end)
    for used in (5, 7777, 6000, 2**62, 2**63 - 1):
        ids.note_used(used)
    assert ids.is_issued(7777)
    assert ids.remaining == 0
    assert [ids.next(), ids.next()] == [7778, 7779]
    assert blocks.end == 7778 + BLOCK_IDS
    ids.note_used(7778 + 100)  # of the block that it has
    assert ids.next() == 7879
    ids.take_ahead()
    ids.note_used(7778 + BLOCK_IDS + 5)  # of the next one
    ids.note_used(3)  # issued long ago
    assert not ids.is_issued(7778 + BLOCK_IDS + 6)
    while (found := ids.next()) < 7778 + BLOCK_IDS:
        pass
    assert found == 7778 + BLOCK_IDS + 6


def test_all_sources_leave_out_ids_that_are_in_use() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take, blocks.end)
    tokens = ids.successor(10)
    assert tokens.next() == 0
    ids.note_used(7777)  # the store was restored from an older copy, and the states of transactions are loaded later
    assert [tokens.next() for _ in range(9)] == list(range(1, 10))
    assert tokens.next() == 7778


def test_a_source_that_is_no_longer_used_is_forgotten() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take, blocks.end)
    for _ in range(1_000):  # loads of the states of transactions
        tokens = ids.successor(10)
        tokens.next()
    assert len(ids._sources) <= 3
    last = tokens.next()
    assert ids.is_issued(last)
    assert not ids.is_issued(last + 1)


def test_ids_of_other_brokers_leave_a_block_as_it_is() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take, blocks.end)
    assert ids.next() == 0
    blocks.take(5 * BLOCK_IDS, 0)
    ids.note_used(3 * BLOCK_IDS)  # another broker's, of a transaction that is coordinated here now
    assert [ids.next() for _ in range(BLOCK_IDS - 1)] == list(range(1, BLOCK_IDS))
    assert ids.next() == 6 * BLOCK_IDS
    blocks.end = 0  # the store has been restored from a copy
    ids.note_used(9 * BLOCK_IDS)
    assert [ids.next() for _ in range(BLOCK_IDS)][-1] == 9 * BLOCK_IDS + 1


def test_only_dependent_calls_wait_for_an_absent_store() -> None:
    is_back = threading.Event()

    def take_block(count: int, at_least: int) -> int:
        assert is_back.wait(60)
        return at_least

    ids = ProducerIds(take_block, 10)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(ids.next)
        found = threads.submit(ids.note_used, 41)
        found.result(30)
        assert not waiting.done()
        is_back.set()
        assert waiting.result(30) == 42
        assert not ids.is_issued(43)


def test_the_next_block_is_reserved_before_the_current_one_ends() -> None:
    blocks = Blocks(7)
    ids = ProducerIds(blocks.take, blocks.end)
    assert ids.wants_block and ids.at_hand() is None
    ids.take_ahead()
    assert ids.remaining == BLOCK_IDS and not ids.is_issued(7)
    blocks.take(BLOCK_IDS, 0)  # another broker's
    assert ids.at_hand() == 7
    assert ids.wants_block
    ids.take_ahead()
    ids.take_ahead()  # there is one already
    assert not ids.wants_block and ids.remaining == 2 * BLOCK_IDS - 1
    found = [ids.at_hand() for _ in range(BLOCK_IDS)]
    assert found[-2:] == [7 + BLOCK_IDS - 1, 7 + 2 * BLOCK_IDS]
    assert ids.reserve() == 7 + 2 * BLOCK_IDS + 1
