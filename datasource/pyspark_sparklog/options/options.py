"""Parsed and checked options of reader and writer. Before parsing, `option_names` translates the names of options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark_sparklog.offsets import LONG_MAX
from pyspark_sparklog.options.cluster_address import ClusterAddress, address_of
from pyspark_sparklog.options.option_names import recognised
from pyspark_sparklog.options.option_table import OptionUse
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.range_reader import FETCH_BYTES, FETCH_WAIT_MS, REQUEST_TIMEOUT_MS
from sparklog.errors import InvalidConfigError
from sparklog.format.column_names import column_names
from sparklog.format.source_offsets import IDS, INITIAL
from sparklog.java_patterns import compile_java, matches_in_time
from sparklog.settings import Scope, settings_of
from sparklog.types import INTERNAL_TOPICS, UNNAMED_APP_PREFIX, check_topic_name

T = TypeVar("T")

PATTERN = "subscribePattern"
GUARANTEES = ("exactly-once", "at-least-once")
TRANSACTION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS_MAX = 3_600_000, 7 * 86_400_000
TXN_APP_ID_CHARS_MAX = 1_000
TRIGGER_DELAY_MS = 15 * 60_000

NO_OPTIONS = (
    "Spark has given no options, as it does for tables of the catalog. A table keeps them if it is made with CREATE "
    "TABLE t USING sparklog OPTIONS (…) and without columns; any other table needs them in each query: SELECT … FROM "
    "t WITH (…), INSERT INTO t "
    'WITH (…), spark.read.option(…).table("t"); DROP TABLE removes the table, not the topic'
)

STRATEGIES = ("subscribe", "subscribePattern", "assign")
"""The options that name the topics to read."""

EARLIEST_OFFSET = -2
"""Value in offsets JSON: the first offset that can be read."""
LATEST_OFFSET = -1
"""Value in offsets JSON: the log's end."""


@dataclass(frozen=True)
class Subscription:
    """The topics to read. Exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str | None = None

    def names(self, topic: str) -> bool:
        """True if the subscription contains a topic of that name."""
        if self.pattern is not None:
            search = compile_java(self.pattern, PATTERN).search
            return topic not in INTERNAL_TOPICS and matches_in_time(search, topic, PATTERN) is not None
        return topic in (self.assign or self.topics)

    def describe(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern!r}"
        return (
            "assign " + json.dumps({t: list(p) for t, p in self.assign.items()})
            if self.assign
            else ("subscribe " + ",".join(self.topics))
        )


HISTORY = "history"
"""Beginning of a read that takes the offsets which a topic's Delta table has from that table, the rest from the log."""
NEWEST = "newest"
"""Like HISTORY, for a read that needs only the newest row of each key: it can also read an upserted table."""


@dataclass(frozen=True)
class Position:
    """The beginning or the end of a read. `kind`: earliest, latest, history, newest, offsets, timestamp (one for all
    partitions) or timestamps (per partition).

    `option` is the name of the option that gave the position, for messages.
    """

    kind: str
    option: str
    per_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp_ms: int = -1


@dataclass(frozen=True)
class SourceOptions:
    """Checked options of a read; None: the option is not given. `remarks`: notes for the user about options without
    effect in this read."""

    address: ClusterAddress
    subscription: Subscription
    starting: Position
    ending: Position
    timestamp_strategy: str
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_metadata: bool
    columns: tuple[str, ...] | None
    local_read: str
    check_crcs: bool
    isolation: int
    group_id: str | None
    broker_wait_ms: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    client_rack: str
    request_timeout_ms: int
    remarks: tuple[str, ...] = ()

    @property
    def limits_batches(self) -> bool:
        return self.max_offsets_per_trigger is not None or self.min_offsets_per_trigger is not None


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of a write. `producer` holds producer settings by their Kafka names. `txn_app_id` of a batch
    write comes together with `txn_version`."""

    address: ClusterAddress
    topic: str | None
    include_headers: bool
    strict_columns: bool
    broker_wait_ms: int
    exactly_once: bool
    transaction_timeout_ms: int | None
    txn_app_id: str | None
    txn_version: int
    producer: Mapping[str, object]
    remarks: tuple[str, ...] = ()


def parse_source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check a read's options. `streaming` None: unknown (schema inference), so options of both kinds are accepted.

    Raises InvalidConfigError that names the option and the right form.
    """
    if not options:
        raise InvalidConfigError(NO_OPTIONS)
    recognized, remarks = recognised(
        options, {None: OptionUse.SOURCE, True: OptionUse.STREAM, False: OptionUse.BATCH}[streaming]
    )
    if "maxtriggerdelay" in recognized and "minoffsetspertrigger" not in recognized:
        remarks += ("maxTriggerDelay (only with minOffsetsPerTrigger does a micro-batch wait)",)
    subscription = _subscription(recognized)
    starting, ending = _start_position(recognized, streaming=streaming), _end_position(recognized)
    _check_both(starting, ending)
    return SourceOptions(
        address=address_of(recognized, NO_OPTIONS),
        subscription=subscription,
        starting=starting,
        ending=ending,
        timestamp_strategy=_choice(recognized, "startingOffsetsByTimestampStrategy", ("error", "latest")),
        max_offsets_per_trigger=_positive(recognized, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_minimum_per_trigger(recognized),
        max_trigger_delay_ms=_trigger_delay_ms(recognized),
        min_partitions=_positive(recognized, "minPartitions"),
        max_records_per_partition=_positive(recognized, "maxRecordsPerPartition"),
        fail_on_data_loss=_get(recognized, "failOnDataLoss", _bool, True),
        include_headers=_get(recognized, "includeHeaders", _bool, False),
        include_metadata=_get(recognized, "includeMetadata", _bool, False),
        columns=_columns(recognized),
        local_read=_choice(recognized, "sparklog.local.read", ("auto", "off")),
        check_crcs=_get(recognized, "sparklog.check.crcs", _bool, True),
        group_id=recognized.get("sparklog.group.id") if streaming else None,
        isolation=isolation_of(_choice(recognized, "sparklog.isolation.level", ("read_committed", "read_uncommitted"))),
        broker_wait_ms=_get(recognized, "sparklog.broker.wait.ms", _count, 60_000),
        fetch_max_bytes=min(
            _consumer(recognized, "fetch.max.bytes", FETCH_BYTES),
            _consumer(recognized, "max.partition.fetch.bytes", FETCH_BYTES),
        ),
        fetch_max_wait_ms=_consumer(recognized, "fetch.max.wait.ms", FETCH_WAIT_MS),
        client_rack=recognized.get("sparklog.client.rack", ""),
        request_timeout_ms=_consumer(recognized, "request.timeout.ms", REQUEST_TIMEOUT_MS),
        remarks=remarks,
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check a write's options. Raises InvalidConfigError that names the option and the right form."""
    recognized, remarks = recognised(options, OptionUse.SINK)
    exactly_once = _choice(recognized, "sparklog.delivery.guarantee", GUARANTEES) == GUARANTEES[0]
    txn_app_id, txn_version = _txn(recognized, streaming=streaming, exactly_once=exactly_once)
    topic = recognized.get("topic")
    producer: dict[str, object] = {}
    for setting in settings_of(Scope.PRODUCER).values():
        text = recognized.get(f"sparklog.{setting.name}")
        if text is None or setting.name == "transaction.timeout.ms":
            continue
        producer[setting.name] = setting.parse(text)
    if producer.pop("acks", "all") not in ("all", "-1"):
        raise InvalidConfigError("sparklog.acks: the sink always writes with acks=all; leave the option out")
    if exactly_once and producer.get("enable.idempotence") is False:
        raise InvalidConfigError(
            "sparklog.enable.idempotence = false: leave it out, or set sparklog.delivery.guarantee to at-least-once"
        )
    return SinkOptions(
        address=address_of(recognized, NO_OPTIONS),
        topic=None if topic is None else check_topic_name(topic),
        include_headers=_get(recognized, "includeHeaders", _bool, False),
        strict_columns=_get(recognized, "sparklog.strict.columns", _bool, False),
        broker_wait_ms=_get(recognized, "sparklog.broker.wait.ms", _count, 60_000),
        exactly_once=exactly_once,
        transaction_timeout_ms=_transaction_timeout_ms(recognized),
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        producer=producer,
        remarks=remarks,
    )


def no_headers(clause: str) -> InvalidConfigError:
    """Return the error for `includeHeaders` where records have no headers; `clause` is a clause that ends with them."""
    return InvalidConfigError(f"includeHeaders: {clause}, which have no headers; leave the option out")


def _transaction_timeout_ms(options: Mapping[str, str]) -> int | None:
    name = "sparklog.transaction.timeout.ms"
    timeout_ms = _positive(options, name)
    if timeout_ms is not None and timeout_ms > TRANSACTION_TIMEOUT_MS_MAX:
        raise InvalidConfigError(f"{name} = {timeout_ms}: at most {TRANSACTION_TIMEOUT_MS_MAX} (7 days)")
    return timeout_ms


def _txn(options: Mapping[str, str], *, streaming: bool, exactly_once: bool) -> tuple[str | None, int]:
    """Return txnAppId and txnVersion, which mean the same as in Delta; None and 0 if they are not given. A stream can
    give only txnAppId and gets version 0 here: its versions are its batch ids. Raises InvalidConfigError."""
    names = [n for n in ("txnAppId", "txnVersion") if n.lower() in options]
    if not names:
        return None, 0
    if streaming and "txnVersion" in names:
        raise InvalidConfigError(
            "txnVersion: only batch writes (also those in foreachBatch) take it; a streaming query's version is its "
            "batch id: leave it out"
        )
    if len(names) == 1 and not streaming:
        raise InvalidConfigError(f"{names[0]} is set alone: set both txnAppId and txnVersion")
    if not exactly_once:
        raise InvalidConfigError("txnAppId and txnVersion need sparklog.delivery.guarantee = exactly-once")
    app_id = options["txnappid"]
    if not 0 < len(app_id) <= TXN_APP_ID_CHARS_MAX:
        raise InvalidConfigError(f"txnAppId = {app_id!r}: use a name of 1 to {TXN_APP_ID_CHARS_MAX} characters")
    if app_id.startswith(UNNAMED_APP_PREFIX):
        raise InvalidConfigError(f"txnAppId = {app_id!r}: a name may not begin with {UNNAMED_APP_PREFIX}")
    return app_id, _get(options, "txnVersion", _count, 0)


def _get(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as e:
        raise InvalidConfigError(f"{name} = {text!r}: {e}") from e


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("use true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,30}", text.strip()):
        raise ValueError("a whole number, not negative, is needed")
    value = int(text)
    if value > LONG_MAX:
        raise ValueError(f"at most {LONG_MAX} is possible")
    return value


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|min|h|d)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError("a time such as 500ms, 30s, 15m or 1h is needed")
    units = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(match[1]) * units[match[2] or "ms"]


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower(), "").strip()
    if re.fullmatch(r"-\d{1,30}|0+", text):
        raise InvalidConfigError(f"{name} must be positive, not {text}")
    return _get(options, name, _count, None)


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the option's value, one of `choices`. The first choice is the default."""
    value = options.get(name.lower(), choices[0]).lower()
    if value not in choices:
        raise InvalidConfigError(f"{name} = {value!r}: use one of {', '.join(choices)}")
    return value


def _minimum_per_trigger(options: Mapping[str, str]) -> int | None:
    minimum = _positive(options, "minOffsetsPerTrigger")
    maximum = _positive(options, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise InvalidConfigError(
            f"The value of minOffsetPerTrigger({minimum}) is higher than the maxOffsetsPerTrigger({maximum})"
        )
    return minimum


def _trigger_delay_ms(options: Mapping[str, str]) -> int:
    if "minoffsetspertrigger" not in options:
        return TRIGGER_DELAY_MS
    return _get(options, "maxTriggerDelay", _duration_ms, TRIGGER_DELAY_MS)


def _consumer(options: Mapping[str, str], name: str, default: int) -> int:
    """Return the value of the consumer's setting `name`, or `default`: reads have other defaults than consumers."""
    text = options.get(f"sparklog.{name}")
    return default if text is None else int(settings_of(Scope.CONSUMER)[name].parse(text))


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("columns")
    if text is None:
        return None
    names = tuple(column_names(text))
    if not names:
        raise InvalidConfigError("columns is empty: name at least one column, or leave the option out")
    if len(set(names)) != len(names):
        raise InvalidConfigError(f"columns = {text!r}: a column is named twice")
    return names


def _subscription(options: Mapping[str, str]) -> Subscription:
    names = [n for n in STRATEGIES if n.lower() in options]
    if not names:
        raise InvalidConfigError(f"One of the following options must be specified: {', '.join(STRATEGIES)}")
    if len(names) > 1:
        raise InvalidConfigError(
            f"Only one of the following options can be specified: {', '.join(STRATEGIES)}; given are "
            f"{' and '.join(names)}"
        )
    text = options[names[0].lower()].strip()
    if names[0] == "subscribePattern":
        if not text:
            raise InvalidConfigError(f"Pattern to subscribe is empty as subscribePattern is {text!r}")
        compile_java(text, PATTERN)
        return Subscription(pattern=text)
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise InvalidConfigError(f"No topics to subscribe to as subscribe is {text!r}")
        return Subscription(topics=tuple(check_topic_name(t) for t in topics))
    if not text.startswith("{"):
        raise InvalidConfigError(
            f'No topicpartitions to assign as assign is {text!r}: write JSON such as {{"topic": [0, 1]}}'
        )
    parsed = _json_object(text, "assign", '{"topic": [0, 1]}')
    assign: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_partition(p) for p in partitions):
            raise InvalidConfigError(
                f'assign: topic {topic!r} needs a list of partition numbers, as in {{"topic": [0, 1]}}'
            )
        assign[check_topic_name(topic)] = tuple(sorted(set(partitions)))
    return Subscription(assign=assign)


def _start_position(options: Mapping[str, str], *, streaming: bool | None) -> Position:
    default = "latest" if streaming else "earliest"
    position = _position(options, "starting", default)
    if streaming is False and (where := _where(position, "latest", LATEST_OFFSET)) is not None:
        place = f"startingOffsets for {where}" if where else "starting offset"
        raise InvalidConfigError(f"{place} can't be latest for batch queries: the read would be empty")
    return position


def _end_position(options: Mapping[str, str]) -> Position:
    position = _position(options, "ending", "latest")
    if (where := _where(position, "earliest", EARLIEST_OFFSET)) is not None:
        place = f"ending offset for {where}" if where else "ending offset"
        raise InvalidConfigError(f"{place} can't be earliest for batch queries: the read would be empty")
    return position


def _where(position: Position, kind: str, offset: int) -> str | None:
    """Return the partition with the given `offset`; "" if the position is of `kind` for all partitions, None if for
    none."""
    if position.kind == kind:
        return ""
    offsets = position.per_partition if position.kind == "offsets" else {}
    return next((f"{t}-{p}" for t, ps in offsets.items() for p, o in ps.items() if o == offset), None)


def _check_both(starting: Position, ending: Position) -> None:
    """Check that a beginning and an end given as numbers name the same partitions, and that no beginning lies after its
    end. Raises InvalidConfigError."""
    if starting.kind != ending.kind or starting.kind not in ("offsets", "timestamps"):
        return
    first, last = _flat(starting), _flat(ending)
    if first.keys() != last.keys():
        differ = ", ".join(f"{t}-{p}" for t, p in sorted(first.keys() ^ last.keys()))
        raise InvalidConfigError(
            "The specified start offset and end offset should have the same topic-partitions: only one of "
            f"{starting.option} and {ending.option} names {differ}"
        )
    kind = starting.kind.rstrip("s")
    for (topic, partition), offset in sorted(first.items()):
        end = last[topic, partition]
        if offset > end >= 0:
            raise InvalidConfigError(
                f"The specified start {kind} {offset} is greater than the end {kind} {end} for {topic}-{partition}"
            )


def _flat(position: Position) -> dict[tuple[str, int], int]:
    return {(t, p): o for t, ps in position.per_partition.items() for p, o in ps.items()}


def _position(options: Mapping[str, str], prefix: str, default: str) -> Position:
    """Return the beginning (`prefix` "starting") or the end ("ending") of a read. Precedence is as in Spark's Kafka
    source: one timestamp, timestamps per partition, offsets; `default` without any of them."""
    timestamp, by_timestamp, offsets = (f"{prefix}{s}" for s in ("Timestamp", "OffsetsByTimestamp", "Offsets"))
    if timestamp.lower() in options:
        return Position("timestamp", timestamp, timestamp_ms=_get(options, timestamp, _count, 0))
    if by_timestamp.lower() in options:
        return Position(
            "timestamps", by_timestamp, parse_offsets(options[by_timestamp.lower()], by_timestamp, lowest=0)
        )
    text = options.get(offsets.lower(), default).strip()
    if text.lower() in ("earliest", "latest") or (prefix == "starting" and text.lower() in (HISTORY, NEWEST)):
        return Position(text.lower(), offsets)
    return Position("offsets", offsets, parse_offsets(text, offsets, lowest=EARLIEST_OFFSET))


def parse_offsets(text: str, option: str, *, lowest: int) -> dict[str, dict[int, int]]:
    """Parse Kafka's offsets JSON `{"topic": {"0": 12}}`. Raises InvalidConfigError.

    The `endOffset` of a query's progress is allowed unchanged: its entries `$ids` and `$initial` are ignored, so the
    ids of the topics are not compared. `lowest` is the smallest number allowed.
    """
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}' if lowest < 0 else '{"topicA":{"0":1700000000000}}'
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(text, option, example).items():
        if topic in (IDS, INITIAL):
            continue
        if not isinstance(partitions, dict) or not partitions:
            raise InvalidConfigError(f"{option}: topic {topic!r} needs an object of partitions, as in {example}")
        result[topic] = {}
        for partition, offset in partitions.items():
            if (
                not (partition.isascii() and partition.isdecimal())
                or int(partition) in result[topic]
                or not isinstance(offset, int)
                or isinstance(offset, bool)
                or not lowest <= offset <= LONG_MAX
            ):
                raise InvalidConfigError(
                    f"{option}: topic {topic!r} has {partition!r}: {offset!r}; partition and value must be whole "
                    f"numbers, each partition once, the value at least {lowest} and at most {LONG_MAX}, as in {example}"
                )
            result[topic][int(partition)] = offset
    return result


def _json_object(text: str, option: str, example: str) -> dict[str, Any]:
    words = "earliest, latest or " if option.endswith("Offsets") else ""
    try:
        parsed = json.loads(text)
    except ValueError as e:
        raise InvalidConfigError(
            f"{option} = {text!r} is not JSON ({e}); write {words}JSON. Expected e.g. {example}"
        ) from e
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidConfigError(f"{option} = {text!r}: write {words}JSON. Expected e.g. {example}")
    return parsed


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
