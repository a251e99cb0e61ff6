"""The streaming source against a catalog in memory: offsets, limits, new and lost partitions, Trigger.AvailableNow."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import Subscription, parse_source_options
from pyspark_sparklog.schemas import TopicShape, full_schema
from pyspark_sparklog.source import catalog as catalog_module
from pyspark_sparklog.source import stream_reader as module
from pyspark_sparklog.source.blocked_reads import BlockedReads
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent
from pyspark_sparklog.source.reader import RangePartition
from pyspark_sparklog.source.stream_reader import SparklogStreamReader

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    DataLossError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    SparklogError,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import (
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetResult,
)
from sparklog.types import READ_UNCOMMITTED, TopicPartition

ALL = ReadAllAvailable()
TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeCatalog:
    """Topics in memory: {name: (id, [(first, end), …])}."""

    def __init__(self) -> None:
        self.logs: dict[str, tuple[str, list[tuple[int, int]]]] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self.waits = 0
        self.on_wait: list[Any] = []

    def set(self, name: str, *extents: tuple[int, int], topic_id: str | None = None) -> None:
        self.logs[name] = (topic_id or f"id-{name}", list(extents))

    def topics(self, subscription: Subscription, *, missing_is_error: bool) -> dict[str, TopicInfo]:
        return {
            name: TopicInfo(
                name, topic_id, "envelope" if name not in self.schemas else "typed", len(extents), 1,
                {1: self.schemas.get(name, ENVELOPE_SCHEMA)}, (), None, {}, 0, (),
            )
            for name, (topic_id, extents) in self.logs.items()
        }  # fmt: skip

    def extents(
        self,
        partitions: Iterable[TopicPartition],
        reached: Mapping[TopicPartition, int] | None = None,
        begin: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, Extent]:
        return {tp: Extent(*self.logs[tp.topic][1][tp.partition]) for tp in partitions if tp.topic in self.logs}

    def wait_for_data(self, positions: Mapping[TopicPartition, int], max_wait_ms: int) -> bool:
        self.waits += 1
        if self.on_wait:
            self.on_wait.pop(0)()
            return True
        return False


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog()


def reader(catalog: FakeCatalog, **options: str) -> SparklogStreamReader:
    parsed = parse_source_options(
        {"sparklog.bootstrap.servers": "h:1", "subscribePattern": ".*", "startingOffsets": "earliest"} | options,
        streaming=True,
    )
    shape = TopicShape("envelope", ENVELOPE_SCHEMA)
    made = SparklogStreamReader(parsed, full_schema(shape, include_headers=False, include_metadata=False), {})
    made._catalog = catalog  # type: ignore[assignment]
    made._blocked_reads = BlockedReads(Catalog(ClusterAddress("h:1"), 0, READ_UNCOMMITTED))
    return made


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(offset)))


def ranges(tasks: Iterable[Any]) -> list[tuple[str, int, int, int]]:
    assert all(isinstance(t, RangePartition) for t in tasks)
    return [(t.topic, t.partition, t.start, t.end) for t in tasks]


def test_batches_follow_one_another_without_a_gap(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5), (2, 3))
    r = reader(catalog)
    start = r.initialOffset()
    assert start == {"t": {"0": 0, "1": 2}, "$ids": {"t": "id-t"}}
    end = through_json(r.latestOffset(start, ALL))
    assert ranges(r.partitions(start, end)) == [("t", 0, 0, 5), ("t", 1, 2, 3)]
    catalog.set("t", (0, 9), (2, 3))
    following = r.latestOffset(end, ALL)
    assert ranges(r.partitions(end, following)) == [("t", 0, 5, 9)]
    assert r.reportLatestOffset() == {"t": {"0": 9, "1": 3}}


def test_a_batch_of_history_is_repeated_after_retention_has_passed_its_beginning(
    catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is in the log, and its beginning only in the table."""
    catalog.set("t", (60, 100))
    r = reader(catalog, startingOffsets="history")
    r._catalog = Catalog(ClusterAddress("h:1"), 0, READ_UNCOMMITTED, history=True)
    monkeypatch.setattr(Catalog, "topics", lambda _, *given, **named: catalog.topics(*given, **named))
    monkeypatch.setattr(Catalog, "_list_offsets", lambda _, questions: {tp: [60, 100] for tp in questions})
    monkeypatch.setattr(ClusterAddress, "connect", lambda _: SimpleNamespace(topic=lambda name, refresh: None))
    table = SimpleNamespace(first_offset=lambda partition, log_start: 0)
    monkeypatch.setattr(catalog_module, "HistorySource", lambda info, required, newest: table)
    start, end = ({"t": {"0": offset}, "$ids": {"t": "id-t"}} for offset in (40, 80))
    assert ranges(r.partitions(start, end)) == [("t", 0, 40, 80)]


def test_ids_are_compared_from_the_first_batch_after_offsets_without_ids(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, failOnDataLoss="false")
    end = {"t": {"0": 5}}  # of format("kafka")
    assert through_json(r.latestOffset(end, ALL))["t"] == {"0": 5}
    catalog.set("t", (0, 9), topic_id="new")
    following = through_json(r.latestOffset(end, ALL))
    assert ranges(r.partitions(end, following)) == [("t", 0, 0, 9)], "from the beginning of the new topic"


def test_offsets_without_topic_ids_are_taken_as_they_are_with_a_warning(
    catalog: FakeCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog)
    end = {"t": {"0": 3}}
    with caplog.at_level(logging.WARNING):
        following = through_json(r.latestOffset(end, ALL))
        r.latestOffset(end, ALL)
    assert ranges(r.partitions(end, following)) == [("t", 0, 3, 5)]
    assert following["$ids"] == {"t": "id-t"}
    assert caplog.text.count("have no topic ids") == 1


def test_without_new_records_the_offset_text_stays_identical(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog)
    end = through_json(r.latestOffset(r.initialOffset(), ALL))
    assert catalog.waits == 0
    assert json.dumps(r.latestOffset(end, ALL)) == json.dumps(end)
    assert catalog.waits == 1


def test_data_that_comes_while_waiting_is_taken_at_once(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog)
    end = r.latestOffset(r.initialOffset(), ALL)
    catalog.on_wait.append(lambda: catalog.set("t", (0, 6)))
    assert r.latestOffset(end, ALL)["t"] == {"0": 6}


def test_the_first_question_about_an_empty_topic_is_answered_at_once(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 0))
    r = reader(catalog)
    start = r.initialOffset()
    assert r.latestOffset(start, ALL) == start
    assert catalog.waits == 0


def test_a_first_batch_that_died_is_run_again_from_where_it_began(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    first_run = reader(catalog, startingOffsets="latest")
    start = first_run.initialOffset()
    catalog.set("t", (0, 8))
    end = through_json(first_run.latestOffset(start, ALL))
    assert ranges(first_run.partitions(start, end)) == [("t", 0, 5, 8)]
    catalog.set("t", (0, 20))
    second_run = reader(catalog, startingOffsets="latest")
    # Spark asks again where to begin, and "latest" is further now
    assert second_run.initialOffset()["t"] == {"0": 20}
    assert ranges(second_run.partitions(second_run.initialOffset(), end)) == [("t", 0, 5, 8)]
    following = second_run.latestOffset(end, ALL)
    assert ranges(second_run.partitions(end, following)) == [("t", 0, 8, 20)]
    assert "$initial" not in following


def test_the_initial_offset_is_stable(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, startingOffsets="latest")
    first = r.initialOffset()
    catalog.set("t", (0, 8))
    assert r.initialOffset() == first


def test_max_offsets_per_trigger(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 30), (0, 10))
    r = reader(catalog, maxOffsetsPerTrigger="8")
    assert r.getDefaultReadLimit() == ReadMaxRows(8)
    start = r.initialOffset()
    end = r.latestOffset(start, r.getDefaultReadLimit())
    assert end["t"] == {"0": 6, "1": 2}
    assert r.latestOffset(start, ALL)["t"] == {"0": 30, "1": 10}


def test_min_offsets_per_trigger_holds_back(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 2))
    r = reader(catalog, minOffsetsPerTrigger="5")
    limit = r.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    end = r.latestOffset(r.initialOffset(), limit)
    assert end["t"] == {"0": 2}, "as with Kafka's source the first batch does not wait"
    catalog.set("t", (0, 6))
    assert r.latestOffset(end, limit) == end
    catalog.set("t", (0, 7))
    assert r.latestOffset(end, limit)["t"] == {"0": 7}


def test_min_offsets_per_trigger_waits_no_longer_than_max_trigger_delay(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 2))
    r = reader(catalog, minOffsetsPerTrigger="5", maxTriggerDelay="0s")
    end = r.latestOffset(r.initialOffset(), r.getDefaultReadLimit())
    catalog.set("t", (0, 3))
    assert r.latestOffset(end, r.getDefaultReadLimit())["t"] == {"0": 3}


def test_new_partitions_and_topics_begin_at_earliest(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, startingOffsets="latest")
    end = r.latestOffset(r.initialOffset(), ALL)
    catalog.set("u", (0, 7))
    catalog.set("t", (0, 5), (1, 2))
    following = r.latestOffset(end, ALL)
    assert ranges(r.partitions(end, following)) == [("t", 1, 1, 2), ("u", 0, 0, 7)]


def test_a_new_topic_of_another_kind_is_refused_by_name(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog)
    start = r.initialOffset()
    catalog.set("typed", (0, 1))
    catalog.schemas["typed"] = pa.schema([("x", pa.int64())])
    with pytest.raises(SchemaMismatchError, match="envelope: t; typed: typed"):
        r.latestOffset(start, ALL)


def test_a_topic_created_again_with_other_columns_is_refused(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, failOnDataLoss="false")
    start = r.initialOffset()
    catalog.set("t", (0, 5), topic_id="new")
    catalog.schemas["t"] = pa.schema([("x", pa.int64())])
    with pytest.raises(SchemaMismatchError, match="topic 't' was deleted and created again with other columns"):
        r.latestOffset(start, ALL)


def test_a_query_that_goes_on_is_warned_of_changed_columns_once(
    catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "changed_columns", lambda name, schemas, read: f"{name} has changed")
    catalog.set("t", (0, 10))
    began = reader(catalog)
    began.latestOffset(began.initialOffset(), ALL)
    assert "has changed" not in caplog.text
    again = reader(catalog)
    for _ in range(2):
        again.latestOffset({"t": {"0": 4}}, ALL)
    assert caplog.text.count("t has changed") == 1


def test_available_now_ends_where_the_log_ended_when_it_began(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, maxOffsetsPerTrigger="3")
    r.prepareForTriggerAvailableNow()
    start = r.initialOffset()
    catalog.set("t", (0, 50), (0, 9))
    catalog.set("u", (0, 9))
    seen = [start]
    while (end := r.latestOffset(seen[-1], r.getDefaultReadLimit())) != seen[-1]:
        seen.append(through_json(end))
    assert [s["t"] for s in seen] == [{"0": 0}, {"0": 3}, {"0": 5}]
    assert catalog.waits == 0


def test_available_now_from_latest_reads_no_record(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    r = reader(catalog, startingOffsets="latest")
    r.prepareForTriggerAvailableNow()
    catalog.set("t", (0, 9))
    start = r.initialOffset()
    assert start["t"] == {"0": 5}
    assert r.latestOffset(start, ALL) == start


def test_starting_offsets_out_of_range(catalog: FakeCatalog, caplog: pytest.LogCaptureFixture) -> None:
    catalog.set("t", (3, 5))
    with pytest.raises(OffsetOutOfRangeError, match=r"startingOffsets: offset 9 of t-0 .* offsets 3 to 5"):
        reader(catalog, startingOffsets='{"t":{"0":9}}').initialOffset()
    with caplog.at_level(logging.WARNING):
        assert reader(catalog, startingOffsets='{"t":{"0":1}}', failOnDataLoss="false").initialOffset()["t"] == {"0": 3}
    assert "continuing at offset 3" in caplog.text


LOSSES = [
    (lambda c: c.set("t", (7, 9)), "offsets from 5 up to 6: the log begins at 7 now", [("t", 0, 7, 9)]),
    (lambda c: c.set("t", (0, 4)), "offsets from 4 up to 4: the log ends at 4 now", []),
    (lambda c: c.set("t", (0, 2), topic_id="new"), "offsets from 5 on: the topic was deleted and", [("t", 0, 0, 2)]),
    (lambda c: c.logs.pop("t"), "offsets from 5 on: the topic was deleted", []),
]


@pytest.mark.parametrize(("change", "message", "then_read"), LOSSES)
def test_a_loss_stops_the_query_or_is_reported_once(
    catalog: FakeCatalog, caplog: pytest.LogCaptureFixture, change: Any, message: str, then_read: list[Any]
) -> None:
    catalog.set("t", (0, 5))
    catalog.set("u", (0, 1))
    careful, careless = reader(catalog), reader(catalog, failOnDataLoss="false")
    end = careful.latestOffset(careful.initialOffset(), ALL)
    change(catalog)
    with pytest.raises(DataLossError, match=f"t partition 0, {message}.*failOnDataLoss.*startingOffsets"):
        careful.latestOffset(end, ALL)
    with caplog.at_level(logging.WARNING):
        following = careless.latestOffset(end, ALL)
        assert ranges(careless.partitions(end, following)) == then_read
        careless.latestOffset(end, ALL)
    assert caplog.text.count(message.split(":")[0]) == 1
    assert careless.latestOffset(following, ALL) == following


def test_a_logged_batch_that_is_gone_is_a_loss(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 5))
    first_run = reader(catalog)
    start = first_run.initialOffset()
    end = first_run.latestOffset(start, ALL)
    catalog.set("t", (0, 50), topic_id="new")
    with pytest.raises(DataLossError, match="offsets from 0 up to 4: the topic was deleted and created again"):
        reader(catalog).partitions(start, end)
    careless = reader(catalog, failOnDataLoss="false")
    assert careless.partitions(start, end) == []
    following = careless.latestOffset(end, ALL)
    assert ranges(careless.partitions(end, following)) == [("t", 0, 0, 50)]


def test_tasks_are_split_and_carry_the_topics_incarnation(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 10))
    r = reader(catalog, minPartitions="3")
    start = r.initialOffset()
    tasks = r.partitions(start, r.latestOffset(start, ALL))
    assert [(t.start, t.end, t.topic_id) for t in tasks if isinstance(t, RangePartition)] == [
        (0, 3, "id-t"),
        (3, 6, "id-t"),
        (6, 10, "id-t"),
    ]


def test_the_group_gets_the_checkpoints_committed_positions(
    catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[TopicPartition, int]] = []

    def commit(self: Any, api: Api, request: OffsetCommitRequest, response: Any, **_: Any) -> Any:
        if api is Api.FIND_COORDINATOR:
            return FindCoordinatorResponse(0)
        assert (request.group_id, request.member_epoch) == ("g", -1)
        told.append({TopicPartition(o.topic, o.partition): o.offset for o in request.offsets})
        if failing:
            raise failing[0]
        return OffsetCommitResponse([OffsetResult(o.topic, o.partition, 0) for o in request.offsets])

    monkeypatch.setattr(Cluster, "request", commit)
    failing: list[SparklogError] = []
    catalog.set("t", (0, 5), (2, 3))
    r = reader(catalog, **{"group.id": "g"})
    start = r.initialOffset()
    end = r.latestOffset(start, ALL)
    r.partitions(start, end)
    assert told == [{TP0: 0, TP1: 2}], "where the query begins; the batch is not committed yet"
    catalog.set("t", (0, 9), (2, 3))
    following = r.latestOffset(end, ALL)
    assert told[1:] == [{TP0: 5, TP1: 3}], "it is committed when the next one is planned"
    r.commit(end)
    r.partitions(end, following)
    assert told[2:] == [], "that is known already"
    failing.append(NonEmptyGroupError("the group has members"))
    catalog.set("t", (0, 9), (2, 7))
    last = r.latestOffset(following, ALL)
    failing.clear()
    r.latestOffset(last, ALL)
    assert told[2:] == [{TP0: 9}, {TP0: 9, TP1: 7}], "what failed is told the next time"


def test_without_a_group_no_offset_is_committed(catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "request", None)
    catalog.set("t", (0, 5))
    r = reader(catalog)
    r.latestOffset(r.initialOffset(), ALL)


def test_spark_4_0_asks_without_a_start_and_a_limit(catalog: FakeCatalog) -> None:
    catalog.set("t", (0, 10))
    r = reader(catalog, maxOffsetsPerTrigger="4")
    r.initialOffset()
    assert [r.latestOffset()["t"]["0"] for _ in range(3)] == [4, 8, 10]


def test_a_reader_goes_to_the_tasks_by_pickle() -> None:
    parsed = parse_source_options({"sparklog.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True)
    shape = TopicShape("envelope", ENVELOPE_SCHEMA)
    made = SparklogStreamReader(parsed, full_schema(shape, include_headers=True, include_metadata=False), {"t": shape})
    assert isinstance(pickle.loads(pickle.dumps(made)), SparklogStreamReader)
    assert module.IDLE_WAIT_MS > 0


def test_a_batch_is_planned_with_the_extents_of_its_end(catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.set("t", (0, 10))
    query = reader(catalog)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    asked: list[str] = []
    topics = catalog.topics

    def counted(subscription: Subscription, *, missing_is_error: bool) -> dict[str, TopicInfo]:
        asked.append("topics")
        return topics(subscription, missing_is_error=missing_is_error)

    monkeypatch.setattr(catalog, "topics", counted)
    (task,) = query.partitions(start, end)
    assert isinstance(task, RangePartition)
    assert (task.start, task.end, task.topic_id, asked) == (0, 10, "id-t", [])
    catalog.set("t", (4, 10))
    with pytest.raises(DataLossError):
        query.partitions(start, end)  # the same batch again: things may have changed since
    assert asked == ["topics"]
