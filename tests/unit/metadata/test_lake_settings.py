"""The rules of a topic's lake settings, and the mark of topics whose keys can be in several partitions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import InvalidConfigError
from sparklog.metadata.lake_settings import check_lake_settings, check_new_columns
from sparklog.metadata.store import TopicSpec
from tests.support.cases import for_each
from tests.support.metadata import ControlledStore

TABLE = {"lake.location": "/a", "lake.mode": "append", "lake.partition.by": "day"}


@for_each(
    "keys, before, after, message",
    [
        ((), TABLE, {**TABLE, "lake.mode": "upsert"}, "lake.mode = 'upsert' does not fit its Delta table"),
        (("k",), TABLE, {**TABLE, "lake.mode": "upsert"}, "lake.mode = 'upsert' does not fit its Delta table"),
        (("k",), TABLE, {**TABLE, "lake.partition.by": ""}, "lake.partition.by = '' does not fit"),
        (("k",), TABLE, {**TABLE, "lake.location": "/b"}, "lake.location = '/b' does not fit"),
        ((), {}, {"lake.mode": "upsert"}, "the topic has no key columns"),
        ((), {"lake.location": "/a", "lake.mode": "upsert"}, {"lake.location": "/a", "lake.mode": "upsert"}, "no key"),
        ((), TABLE, {"lake.mode": "append", "lake.partition.by": "day"}, "cannot be removed alone"),
        ((), TABLE, {**TABLE, "lake.location": ""}, "cannot be removed alone"),
        (("k",), {"partitions.added": True}, {}, "partitions.added is set by the broker"),
        (("k",), {}, {"partitions.added": True}, "partitions.added is set by the broker"),
        (
            ("k",),
            {"partitions.added": True},
            {"partitions.added": True, "lake.location": "/a", "lake.mode": "upsert"},
            "got partitions after its creation",
        ),
    ],
)
def test_changes_that_a_table_cannot_follow_are_refused(
    keys: tuple[str, ...], before: dict[str, object], after: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        check_lake_settings("t", keys, before, after)


@for_each(
    "keys, before, after",
    [
        ((), TABLE, {}),
        ((), {"lake.mode": "append"}, TABLE),
        ((), {"lake.location": "file:///a/"}, {"lake.location": "/a"}),
        ((), TABLE, {**TABLE, "lake.paused": "now", "lake.commit.interval.ms": 5}),
        (("k",), {}, {"lake.location": "/a", "lake.mode": "upsert"}),
        (("k",), {"partitions.added": True}, {**TABLE, "partitions.added": True}),
    ],
)
def test_changes_that_a_table_can_follow(
    keys: tuple[str, ...], before: dict[str, object], after: dict[str, object]
) -> None:
    check_lake_settings("t", keys, before, after)


def test_columns_that_a_table_cannot_have_are_refused() -> None:
    before, name = pa.schema([("a b", pa.int64())]), "Delta allows no ' '"
    for added, message in (
        ([("c d", pa.int64())], name),
        ([("s", pa.struct([("c d", pa.int64())]))], name),
        ([("i", pa.list_(pa.duration("us")))], "an interval"),
        ([("e", pa.struct([]))], "a struct without fields"),
    ):
        after = pa.schema([*before, *pa.schema(added)])
        with pytest.raises(InvalidConfigError, match=message):
            check_new_columns("t", TABLE, before, after)
        check_new_columns("t", {}, before, after)
    check_new_columns("t", TABLE, before, pa.schema([*before, ("n", pa.int64())]))


def test_a_topic_with_keys_that_gets_partitions_is_marked(tmp_path: Path) -> None:
    store = ControlledStore(tmp_path)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    for spec, expected in (
        (TopicSpec("keyed", schema=schema, key_columns=["id"]), True),
        (TopicSpec("keyless", schema=schema), None),
        (TopicSpec("envelope"), True),
    ):
        store.create_topic(spec)
        assert store.add_partitions(spec.name, 4).configs.get("partitions.added") is expected
    with pytest.raises(InvalidConfigError, match="got partitions after its creation"):
        store.alter_topic("keyed", {"lake.location": "/a", "lake.mode": "upsert"})
    with pytest.raises(InvalidConfigError, match="set by the broker"):
        store.alter_topic("keyed", {"partitions.added": None})
    store.alter_topic("keyed", {"lake.location": "/a", "lake.mode": "append"})
    store.close()
