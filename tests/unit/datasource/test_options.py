"""Options of the data source: the accepted values, and the error with a remedy for every mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampNTZType, TimestampType
from pyspark_sparklog import compatibility
from pyspark_sparklog.compatibility import arrow_type_of, check_read_limits
from pyspark_sparklog.offsets import SourceOffset
from pyspark_sparklog.options.option_table import OPTIONS, PRODUCER_OPTIONS, OptionUse, markdown_table
from pyspark_sparklog.options.options import Subscription, parse_offsets, parse_sink_options, parse_source_options
from pyspark_sparklog.source.source import infer_schema

from sparklog.errors import InvalidConfigError, InvalidTopicError
from sparklog.types import TopicPartition
from tests.support.cases import for_each

READ = {"sparklog.bootstrap.servers": "h:1", "subscribe": "t"}
WRITE = {"sparklog.bootstrap.servers": "h:1"}


def lower(options: dict[str, str]) -> dict[str, str]:
    return {k.lower(): v for k, v in options.items()}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS", raising=False)


def test_defaults_of_a_stream_and_of_a_batch_read() -> None:
    stream = parse_source_options(READ, streaming=True)
    assert (stream.starting.kind, stream.ending.kind) == ("latest", "latest")
    assert stream.subscription == Subscription(topics=("t",))
    assert (stream.fail_on_data_loss, stream.include_headers, stream.local_read) == (True, False, "auto")
    assert stream.broker_wait_ms == 60_000
    assert parse_source_options(READ, streaming=False).starting.kind == "earliest"


def test_keys_in_lower_case_have_the_effect_of_the_documented_names() -> None:
    options = READ | {
        "maxOffsetsPerTrigger": "10",
        "minOffsetsPerTrigger": "2",
        "maxTriggerDelay": "30s",
        "minPartitions": "3",
        "maxRecordsPerPartition": "7",
        "includeHeaders": "TRUE",
        "failOnDataLoss": "false",
        "columns": "a, b",
    }
    assert parse_source_options(lower(options), streaming=True) == parse_source_options(options, streaming=True)
    parsed = parse_source_options(options, streaming=True)
    assert parsed.columns == ("a", "b")
    assert parsed.max_trigger_delay_ms == 30_000
    assert parsed.max_records_per_partition == 7


def test_kafka_names_are_aliases() -> None:
    parsed = parse_source_options({"kafka.bootstrap.servers": "k:9", "subscribe": "a,b"}, streaming=True)
    assert parsed.address.bootstrap_servers == "k:9"
    assert parsed.subscription.topics == ("a", "b")
    sink = parse_sink_options({"kafka.bootstrap.servers": "k:9", "kafka.linger.ms": "7"}, streaming=False)
    assert sink.producer == {"linger.ms": 7}


def test_an_alias_with_another_value_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"sparklog.bootstrap.servers is given twice"):
        parse_source_options(READ | {"kafka.bootstrap.servers": "other:1"}, streaming=True)


def test_the_environment_names_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", "env:1")
    assert parse_source_options({"subscribe": "t"}, streaming=True).address.bootstrap_servers == "env:1"
    assert parse_source_options(READ, streaming=True).address.bootstrap_servers == "h:1"


def test_offsets_json() -> None:
    parsed = parse_source_options(READ | {"startingOffsets": '{"t": {"0": 5, "1": -2, "2": -1}}'}, streaming=True)
    assert parsed.starting.kind == "offsets"
    assert parsed.starting.per_partition == {"t": {0: 5, 1: -2, 2: -1}}


def test_reported_offsets_are_accepted_as_options() -> None:
    at = SourceOffset({TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}, {"t": "id"}, {TopicPartition("t", 0): 0})
    assert parse_offsets(json.dumps(at.to_dict()), "startingOffsets", lowest=-2) == {"t": {0: 5, 1: 7}}


@for_each("text", ['{"\u0661": 1}', '{"0": 1, "00": 2}', '{"0": true}', '{"0": 1.0}', '{"0": "1"}'])
def test_offsets_that_are_no_whole_numbers_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="whole numbers, each partition once"):
        parse_offsets(f'{{"t": {text}}}', "startingOffsets", lowest=-2)


def test_timestamps_go_before_offsets() -> None:
    by_timestamp = READ | {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 99}}'}
    assert parse_source_options(by_timestamp, streaming=True).starting.kind == "timestamps"
    one = parse_source_options(by_timestamp | {"startingTimestamp": "1234"}, streaming=True).starting
    assert (one.kind, one.timestamp_ms) == ("timestamp", 1234)


def test_options_that_spark_adds_are_accepted() -> None:
    added = {"path": "x", "queryname": "q", "checkpointlocation": "/c"}
    assert parse_source_options(READ | added, streaming=True) == parse_source_options(READ, streaming=True)
    assert parse_sink_options(WRITE | added, streaming=True) == parse_sink_options(WRITE, streaming=True)


def test_options_of_a_kafka_job_without_a_meaning_here_are_accepted_and_named() -> None:
    given = READ | {"groupIdPrefix": "g", "fetchOffset.numRetries": "3"}
    parsed = parse_source_options(given, streaming=True)
    assert len(parsed.remarks) == 2
    assert "consumer group" in parsed.remarks[0]


@for_each("name", ["group.id", "kafka.group.id", "sparklog.group.id"])
def test_a_stream_may_publish_its_progress_to_a_group(name: str) -> None:
    assert parse_source_options(READ | {name: "g"}, streaming=True).group_id == "g"
    assert parse_source_options(READ | {name: "g"}, streaming=None).group_id is None
    batch = parse_source_options(READ | {"kafka.group.id": "g"}, streaming=False)
    assert batch.group_id is None
    assert "only a streaming query" in batch.remarks[0]


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"subscribe": "t"}, True, "'kafka.bootstrap.servers' must be specified"),
        ({"sparklog.bootstrap.servers": "h:1"}, True, "One of the following options must be specified"),
        (READ | {"assign": '{"t":[0]}'}, True, "given are subscribe and assign"),
        (READ | {"startingofset": "earliest"}, True, "did you mean 'startingOffsets'"),
        (READ | {"maxOffsetPerTrigger": "1"}, True, "did you mean 'maxOffsetsPerTrigger'"),
        (READ | {"sparklog.lokal.read": "off"}, True, "did you mean 'sparklog.local.read'"),
        (READ | {"zzz": "1"}, True, "known: .*subscribePattern"),
        (READ | {"startingOffsets": "latest"}, False, "can't be latest for batch queries"),
        (READ | {"startingOffsets": '{"t":{"0":-1}}'}, False, "can't be latest for batch queries"),
        (READ | {"endingOffsets": "earliest"}, False, "can't be earliest for batch queries"),
        (READ | {"endingOffsets": '{"t":{"0":-2}}'}, False, "can't be earliest for batch queries"),
        (
            READ | {"startingOffsets": "first"},
            True,
            "startingOffsets = 'first' is not JSON .*earliest, latest or JSON.*Expected e.g.",
        ),
        (READ | {"startingOffsets": "[1]"}, True, "write earliest, latest or JSON. Expected e.g."),
        (READ | {"startingOffsets": '{"t":[0]}'}, True, "topic 't' needs an object of partitions"),
        (READ | {"startingOffsets": '{"t":{"0":"5"}}'}, True, "'0': '5'"),
        (READ | {"startingOffsets": '{"t":{"zero":5}}'}, True, "'zero': 5"),
        (READ | {"startingOffsets": '{"t":{"0":-3}}'}, True, "at least -2"),
        (READ | {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, True, "at least 0"),
        (READ | {"endingOffsets": "latest"}, True, "ending offset not valid in streaming queries"),
        (READ | {"endingOffsetsByTimestamp": "{}"}, True, "ending timestamp not valid in streaming queries"),
        (READ | {"endingTimestamp": "1"}, True, "ending timestamp not valid in streaming queries"),
        (READ | {"maxOffsetsPerTrigger": "9223372036854775808"}, True, "at most 9223372036854775807"),
        (READ | {"startingOffsets": '{"t":{"0":9223372036854775808}}'}, True, "at most 9223372036854775807"),
        (READ | {"kafka.isolation.level": "dirty"}, True, "use one of read_committed, read_uncommitted"),
        (READ | {"startingOffsetsByTimestampStrategy": "guess"}, True, "use one of error, latest"),
        (READ | {"startingTimestamp": "yesterday"}, True, "startingTimestamp = 'yesterday'"),
        (READ | {"failOnDataLoss": "no"}, True, "failOnDataLoss = 'no': use true or false"),
        (READ | {"maxOffsetsPerTrigger": "0"}, True, "must be positive, not 0"),
        (READ | {"maxOffsetsPerTrigger": "many"}, True, "a whole number"),
        (READ | {"minPartitions": "-1"}, True, "minPartitions must be positive, not -1"),
        (
            READ | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            True,
            "is higher than the maxOffsetsPerTrigger",
        ),
        (READ | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, True, "a time such as"),
        (READ | {"sparklog.local.read": "mmap"}, True, "use one of auto, off"),
        (READ | {"columns": " , "}, True, "columns is empty"),
        (READ | {"columns": "a, `b"}, True, "no closing backquote"),
        (READ | {"columns": "a,a"}, True, "named twice"),
        (READ | {"subscribe": ","}, True, "No topics to subscribe to"),
    ],
)
def test_a_bad_read_option_is_named(options: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_source_options(lower(options), streaming=streaming)


@pytest.mark.parametrize(
    ("subscription", "error", "message"),
    [
        ({"subscribe": "a b"}, InvalidTopicError, "a b"),
        ({"assign": "t"}, InvalidConfigError, "No topicpartitions to assign as assign is 't'"),
        ({"assign": '{"t": 0}'}, InvalidConfigError, "a list of partition numbers"),
        ({"assign": '{"t": [-1]}'}, InvalidConfigError, "a list of partition numbers"),
        ({"subscribePattern": "("}, InvalidConfigError, "subscribePattern .* not valid"),
    ],
)
def test_a_bad_subscription_is_named(subscription: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_source_options({"sparklog.bootstrap.servers": "h:1"} | subscription, streaming=True)


LONG_MAX = 2**63 - 1


def test_longs_as_a_job_for_the_jvm_gives_them() -> None:
    limits = READ | {"maxOffsetsPerTrigger": str(LONG_MAX), "startingTimestamp": str(LONG_MAX)}
    parsed = parse_source_options(limits, streaming=True)
    assert (parsed.max_offsets_per_trigger, parsed.starting.timestamp_ms) == (LONG_MAX, LONG_MAX)
    by_timestamp = READ | {"endingOffsetsByTimestamp": f'{{"t": {{"0": {LONG_MAX}}}}}'}
    assert parse_source_options(by_timestamp, streaming=False).ending.per_partition == {"t": {0: LONG_MAX}}


@pytest.mark.parametrize(
    ("option", "streaming", "remark"),
    [
        ({"maxOffsetsPerTrigger": "many"}, False, "maxOffsetsPerTrigger (only streaming reads use it)"),
        (
            {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "1m"},
            False,
            "minOffsetsPerTrigger (only streaming reads use it)",
        ),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay (only with minOffsetsPerTrigger does a micro-batch wait)"),
        ({"topic": "out"}, True, "topic (only writes use it)"),
        ({"sparklog.linger.ms": "1"}, False, "sparklog.linger.ms (only writes use it)"),
        ({"kafka.linger.ms": "fast"}, True, "kafka.linger.ms (only writes use it)"),
        ({"kafka.key.serializer": "x"}, True, "kafka.key.serializer (only writes use it)"),
    ],
)
def test_options_of_writes_have_no_effect_in_a_read(option: dict[str, str], streaming: bool, remark: str) -> None:
    parsed = parse_source_options(lower(READ | option), streaming=streaming)
    assert parsed.remarks[0] == remark
    assert replace(parsed, remarks=()) == parse_source_options(READ, streaming=streaming)


def test_options_of_reads_have_no_effect_in_a_write() -> None:
    given = WRITE | {"topic": "t", "subscribe": "a", "startingOffsets": "earliest", "kafka.auto.offset.reset": "latest"}
    parsed = parse_sink_options(lower(given), streaming=True)
    assert parsed.remarks == (
        "subscribe (only reads use it)",
        "startingOffsets (only reads use it)",
        "kafka.auto.offset.reset (only reads use it)",
    )
    assert replace(parsed, remarks=()) == parse_sink_options(WRITE | {"topic": "t"}, streaming=True)


def test_schema_inference_takes_the_options_of_both_kinds_of_read() -> None:
    parse_source_options(READ | {"endingOffsets": "latest"}, streaming=None)
    parse_source_options(READ | {"maxOffsetsPerTrigger": "3"}, streaming=None)


def test_sink_options() -> None:
    parsed = parse_sink_options(
        WRITE
        | {"topic": "t", "sparklog.compression": "lz4", "sparklog.batch.size.bytes": "65536", "sparklog.acks": "all"},
        streaming=True,
    )
    assert (parsed.topic, parsed.producer) == ("t", {"compression": "lz4", "batch.size.bytes": 65536})
    assert parsed.exactly_once
    assert parsed.txn_app_id is None
    assert not parse_sink_options(WRITE | {"delivery.guarantee": "At-Least-Once"}, streaming=True).exactly_once


def test_a_batch_write_is_named_as_in_delta() -> None:
    assert parse_sink_options(lower(WRITE | {"txnAppId": "Again"}), streaming=True).txn_app_id == "Again"
    parsed = parse_sink_options(lower(WRITE | {"txnAppId": "Nightly", "txnVersion": "7"}), streaming=False)
    assert (parsed.txn_app_id, parsed.txn_version) == ("Nightly", 7)


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"txnAppId": "a"}, False, "txnAppId is set alone"),
        ({"txnVersion": "1"}, False, "txnVersion is set alone"),
        ({"txnAppId": "a", "txnVersion": "-1"}, False, "txnVersion = '-1': a whole number"),
        ({"txnAppId": "", "txnVersion": "1"}, False, "a name of 1 to 1000 characters"),
        ({"txnAppId": "__unnamed:x", "txnVersion": "1"}, False, "may not begin with __unnamed:"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "txnVersion: only batch writes .* take it"),
        (
            {"txnAppId": "a", "txnVersion": "1", "sparklog.delivery.guarantee": "at-least-once"},
            False,
            "need sparklog.delivery.guarantee = exactly-once",
        ),
        ({"sparklog.delivery.guarantee": "at-most-once"}, True, "use one of exactly-once, at-least-once"),
        ({"sparklog.transaction.timeout.ms": "0"}, True, "must be positive, not 0"),
        ({"sparklog.transaction.timeout.ms": "604800001"}, True, "at most 604800000"),
        ({"kafka.transactional.id": "x"}, True, "see txnAppId"),
    ],
)
def test_a_bad_delivery_option_is_named(options: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_sink_options(lower(WRITE | options), streaming=streaming)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t"}, "'kafka.bootstrap.servers' must be specified"),
        (WRITE | {"topik": "t"}, "did you mean 'topic'"),
        (WRITE | {"sparklog.acks": "1"}, "always writes with acks=all"),
        (WRITE | {"sparklog.compression": "gzip"}, "use one of none, lz4, zstd"),
        (WRITE | {"sparklog.linger.ms": "fast"}, "linger.ms"),
        (WRITE | {"kafka.compresion": "lz4"}, "did you mean 'sparklog.compression'"),
    ],
)
def test_a_bad_write_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_sink_options(lower(options), streaming=False)


def test_the_table_says_something_about_every_option_once() -> None:
    names = [o.name for o in OPTIONS + PRODUCER_OPTIONS]
    assert len(names) == len({n.lower() for n in names})
    for option in OPTIONS + PRODUCER_OPTIONS:
        assert option.doc.endswith(".")
        assert option.type_name
        assert option.where in OptionUse.ALL
        assert option.where.describe()


def test_the_documentation_lists_the_valid_options_of_a_place() -> None:
    stream = markdown_table(OptionUse.STREAM)
    assert "`maxOffsetsPerTrigger`" in stream
    assert "`endingOffsets`" not in stream
    assert "`sparklog.linger.ms`" in markdown_table(OptionUse.SINK)


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
def test_a_table_of_the_catalog_gets_the_remedy(parse: Any) -> None:
    """One that does not keep its options."""
    with pytest.raises(
        InvalidConfigError, match=r"tables of the catalog.*CREATE TABLE t USING sparklog.*INSERT INTO t WITH"
    ):
        parse({}, streaming=False)


def test_a_subscription_has_its_topics() -> None:
    assert Subscription(topics=("a", "b")).names("b") and not Subscription(topics=("a",)).names("b")
    assert Subscription(assign={"a": (0,)}).names("a") and not Subscription(assign={"a": (0,)}).names("b")
    pattern = Subscription(pattern="o")
    assert pattern.names("orders") and not pattern.names("trips") and not pattern.names("__consumer_offsets")


# Differences between versions of PySpark, as far as one version shows them


def test_timestamps_come_in_utc() -> None:
    assert arrow_type_of(TimestampType()) == pa.timestamp("us", "UTC")
    assert arrow_type_of(TimestampNTZType()) == pa.timestamp("us")


def test_limits_that_an_old_spark_cannot_keep_are_refused_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    check_read_limits(has_limit=True)
    monkeypatch.setattr(compatibility, "READERS_RECEIVE_THEIR_START", False)
    check_read_limits(has_limit=False)
    read = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(InvalidConfigError, match=r"need PySpark 4\.2: .* does not pass the start of a micro-batch"):
        infer_schema(read)
