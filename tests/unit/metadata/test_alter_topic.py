"""Changing a topic's settings: the rules, and what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import InvalidConfigError, UnknownTopicOrPartitionError
from sparklog.metadata.store import TopicSpec
from tests.support.metadata import ControlledStore


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[], ControlledStore]:
    return lambda: ControlledStore(tmp_path)


def test_settings_are_set_changed_and_taken_back(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    made = store.create_topic(TopicSpec("t", 2, configs={"segment.bytes": 8192, "segment.ms": 5}))
    altered = store.alter_topic("t", {"segment.bytes": None, "segment.ms": "7", "retention.ms": -1})
    assert dict(altered.configs) == {"segment.ms": 7, "retention.ms": -1}
    assert (altered.topic_id, altered.partitions, altered.schemas) == (made.topic_id, 2, made.schemas)
    assert store.alter_topic("t", {"segment.jitter.ms": None}) == altered
    store.close()
    store = open_store()
    assert store.topics() == {"t": altered}
    store.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"retention": 1}, "unknown topic setting 'retention': did you mean"),
        ({"retention": None}, "unknown topic setting 'retention': did you mean"),
        ({"retention.ms": -2}, "at least -1"),
        ({"segment.bytes": "many"}, "a whole number is needed"),
        ({"cleanup.policy": "forget"}, "use one of delete, compact, compact,delete"),
        ({"message.timestamp.type": "LogAppendTime"}, "cannot be changed.*create a new topic"),
    ],
)
def test_a_refused_change_has_no_effect(
    open_store: Callable[[], ControlledStore], changes: dict[str, object | None], says: str
) -> None:
    store = open_store()
    made = store.create_topic(TopicSpec("t", configs={"segment.ms": 5}))
    with pytest.raises(InvalidConfigError, match=says):
        store.alter_topic("t", {"segment.ms": 6} | changes)
    assert store.topics() == {"t": made}
    store.close()


@pytest.mark.parametrize(("before", "after"), [("json", None), ("json", ""), ("json", "text"), ("", "json")])
def test_the_form_of_keys_stays(open_store: Callable[[], ControlledStore], before: str, after: str | None) -> None:
    store = open_store()
    configs = {"kafka.key.format": before}
    created = store.create_topic(TopicSpec("t", 1, pa.schema([("id", pa.string())]), ["id"], configs=configs))
    with pytest.raises(InvalidConfigError, match=r"kafka\.key\.format cannot be changed.*create a new topic"):
        store.alter_topic("t", {"kafka.key.format": after, "segment.ms": 5})
    assert store.topics() == {"t": created}
    assert store.alter_topic("t", {"kafka.key.format": before, "segment.ms": 5}).configs["segment.ms"] == 5
    store.close()


def test_the_kind_of_timestamps_may_be_named_as_it_is(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    store.create_topic(TopicSpec("t", configs={"message.timestamp.type": "LogAppendTime"}))
    altered = store.alter_topic("t", {"message.timestamp.type": "LogAppendTime", "segment.ms": 5})
    assert altered.configs["segment.ms"] == 5
    with pytest.raises(InvalidConfigError, match="cannot be changed"):
        store.alter_topic("t", {"message.timestamp.type": None})
    store.create_topic(TopicSpec("u"))
    for by_producer in ("CreateTime", None, "CreateTime"):
        store.alter_topic("u", {"message.timestamp.type": by_producer})
    store.close()


def test_an_unknown_topic_is_named(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'gone' does not exist"):
        store.alter_topic("gone", {"segment.ms": 5})
    store.close()


def test_a_typed_topic_keeps_its_other_settings(open_store: Callable[[], ControlledStore]) -> None:
    store = open_store()
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    made = store.create_topic(TopicSpec("t", 1, schema, ["id"], "at"))
    altered = store.alter_topic("t", {"segment.ms": 5})
    assert (altered.schemas, altered.key_columns, altered.timestamp_column) == (made.schemas, ("id",), "at")
    store.close()
