"""Options as the reader and the writer work with them: parsed and checked against the table.

Spark hands option names over in lower case; messages show them as documented.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark_sparklog.offsets import IDS, INITIAL
from pyspark_sparklog.option_table import (
    ADDED_BY_SPARK,
    ALIASES,
    BOOTSTRAP_ENVIRONMENT,
    REFUSED,
    WITHOUT_EFFECT,
    Option,
    Where,
    options_for,
)
from sparklog.client.isolation import isolation_of
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope, did_you_mean, settings_of
from sparklog.types import UNNAMED_APP_PREFIX, check_topic_name

T = TypeVar("T")

GUARANTEES = ("exactly-once", "at-least-once")
TRANSACTION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS_MAX = 3_600_000, 7 * 86_400_000
TXN_APP_ID_CHARS_MAX = 1_000

EARLIEST_OFFSET = -2
"""In offsets JSON: the first offset that can be read."""
LATEST_OFFSET = -1
"""In offsets JSON: the log's end."""


@dataclass(frozen=True)
class Subscription:
    """What to read: exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str | None = None

    def describe(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern!r}"
        return (
            "assign " + json.dumps({t: list(p) for t, p in self.assign.items()})
            if self.assign
            else ("subscribe " + ",".join(self.topics))
        )


@dataclass(frozen=True)
class Position:
    """Where to begin or end. `kind`: earliest, latest, offsets, timestamp (one for all) or timestamps (per partition).

    `option` is the option it came from, for messages.
    """

    kind: str
    option: str
    per_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp_ms: int = -1


@dataclass(frozen=True)
class SourceOptions:
    """Checked options of a read."""

    bootstrap_servers: str
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
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of a write. `producer` holds producer settings by their Kafka names. `txn_app_id` is given only for
    batch writes, together with `txn_version`."""

    bootstrap_servers: str
    topic: str | None
    include_headers: bool
    broker_wait_ms: int
    exactly_once: bool
    transaction_timeout_ms: int
    txn_app_id: str | None
    txn_version: int
    producer: Mapping[str, object]


def parse_source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Checks a read's options; `streaming` None: it is not known yet (schema inference), options of both are taken.

    Raises InvalidConfigError that names the option and what to write instead.
    """
    where = {None: Where.SOURCE, True: Where.STREAM, False: Where.BATCH}[streaming]
    given = _known(options, where)
    effective = options_for(where)
    ignored = tuple(f"{n} ({WITHOUT_EFFECT[n]})" for n in given if n in WITHOUT_EFFECT and n not in effective)
    return SourceOptions(
        bootstrap_servers=_bootstrap(given),
        subscription=_subscription(given),
        starting=_starting(given, streaming=streaming),
        ending=_ending(given),
        timestamp_strategy=_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest")),
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_minimum_per_trigger(given),
        max_trigger_delay_ms=_get(given, "maxTriggerDelay", _duration_ms, 15 * 60_000),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_get(given, "failOnDataLoss", _bool, True),
        include_headers=_get(given, "includeHeaders", _bool, False),
        include_metadata=_get(given, "includeMetadata", _bool, False),
        columns=_columns(given),
        local_read=_choice(given, "sparklog.local.read", ("auto", "off")),
        check_crcs=_get(given, "sparklog.check.crcs", _bool, True),
        group_id=given.get("sparklog.group.id") if streaming else None,
        isolation=isolation_of(_choice(given, "sparklog.isolation.level", ("read_committed", "read_uncommitted"))),
        broker_wait_ms=_get(given, "sparklog.broker.wait.ms", _count, 60_000),
        ignored=ignored,
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Checks a write's options. Raises InvalidConfigError that names the option and what to write instead."""
    given = _known(options, Where.SINK)
    exactly_once = _choice(given, "sparklog.delivery.guarantee", GUARANTEES) == GUARANTEES[0]
    txn_app_id, txn_version = _txn(given, streaming=streaming, exactly_once=exactly_once)
    topic = given.get("topic")
    producer: dict[str, object] = {}
    for setting in settings_of(Scope.PRODUCER).values():
        text = given.get(f"sparklog.{setting.name}")
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
        bootstrap_servers=_bootstrap(given),
        topic=None if topic is None else check_topic_name(topic),
        include_headers=_get(given, "includeHeaders", _bool, False),
        broker_wait_ms=_get(given, "sparklog.broker.wait.ms", _count, 60_000),
        exactly_once=exactly_once,
        transaction_timeout_ms=_transaction_timeout_ms(given),
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        producer=producer,
    )


def _transaction_timeout_ms(given: Mapping[str, str]) -> int:
    name = "sparklog.transaction.timeout.ms"
    timeout_ms = _positive(given, name) or TRANSACTION_TIMEOUT_MS
    if timeout_ms > TRANSACTION_TIMEOUT_MS_MAX:
        raise InvalidConfigError(f"{name} = {timeout_ms}: at most {TRANSACTION_TIMEOUT_MS_MAX} (7 days)")
    return timeout_ms


def _txn(given: Mapping[str, str], *, streaming: bool, exactly_once: bool) -> tuple[str | None, int]:
    """txnAppId and txnVersion of a batch write, as Delta has them."""
    names = [n for n in ("txnAppId", "txnVersion") if n.lower() in given]
    if not names:
        return None, 0
    if streaming:
        raise InvalidConfigError(
            f"{' and '.join(names)}: only batch writes (also those in foreachBatch) take them; a streaming query is known by "
            "its query id and batch id already: leave them out"
        )
    if len(names) == 1:
        raise InvalidConfigError(f"{names[0]} needs the other one, too: set both txnAppId and txnVersion")
    if not exactly_once:
        raise InvalidConfigError("txnAppId and txnVersion need sparklog.delivery.guarantee = exactly-once")
    app_id = given["txnappid"]
    if not 0 < len(app_id) <= TXN_APP_ID_CHARS_MAX:
        raise InvalidConfigError(f"txnAppId = {app_id!r}: a name of 1 to {TXN_APP_ID_CHARS_MAX} characters is needed")
    if app_id.startswith(UNNAMED_APP_PREFIX):
        raise InvalidConfigError(f"txnAppId = {app_id!r}: a name may not begin with {UNNAMED_APP_PREFIX}")
    return app_id, _get(given, "txnVersion", _count, 0)


def _known(options: Mapping[str, str], where: Where) -> dict[str, str]:
    """`options` by lower-case name with aliases resolved; refuses what is unknown or does not belong here."""
    everywhere, here = options_for(Where.ALL), options_for(where)
    given: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name.startswith("kafka."):
            name = "sparklog." + name.removeprefix("kafka.")
        name = ALIASES.get(name, name)
        if name in ADDED_BY_SPARK:
            continue
        if name in given and given[name] != value:
            raise InvalidConfigError(
                f"{everywhere[name].name if name in everywhere else name} is given twice, with different values"
            )
        if name in REFUSED:
            raise InvalidConfigError(f"option {written} cannot be used: {REFUSED[name]}")
        if name not in here and not (name in WITHOUT_EFFECT and where & Where.SOURCE):
            raise InvalidConfigError(_wrong_option(written, name, where, here, everywhere))
        given[name] = value
    return given


def _wrong_option(
    written: str, name: str, where: Where, here: Mapping[str, Option], everywhere: Mapping[str, Option]
) -> str:
    if name in everywhere:
        option = everywhere[name]
        return f"option {option.name} is for {option.where.describe()}, this is one of {where.describe()}"
    names = {lower: o.name for lower, o in here.items()}
    hint = did_you_mean(name, names)
    for lower, shown in sorted(names.items(), key=lambda item: -len(item[0])):
        hint = hint.replace(f"'{lower}'", f"'{shown}'")
    if "known:" in hint:
        hint = f" (known: {', '.join(sorted(o.name for o in here.values()))})"
    return f"unknown option {written!r}{hint}"


def _get(given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as e:
        raise InvalidConfigError(f"{name} = {text!r}: {e}") from e


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise ValueError("a whole number, not negative, is needed")
    return int(text)


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise ValueError("a time such as 500ms, 30s, 15m or 1h is needed")
    units = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(match[1]) * units[match[2] or "ms"]


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value: int | None = _get(given, name, _count, None)
    if value == 0:
        raise InvalidConfigError(f"{name} = 0: at least 1 is needed")
    return value


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    value = given.get(name.lower(), choices[0]).lower()
    if value not in choices:
        raise InvalidConfigError(f"{name} = {value!r}: use one of {', '.join(choices)}")
    return value


def _minimum_per_trigger(given: Mapping[str, str]) -> int | None:
    minimum = _positive(given, "minOffsetsPerTrigger")
    maximum = _positive(given, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise InvalidConfigError(f"minOffsetsPerTrigger = {minimum} is more than maxOffsetsPerTrigger = {maximum}")
    if minimum is None and "maxtriggerdelay" in given:
        raise InvalidConfigError("maxTriggerDelay only makes sense together with minOffsetsPerTrigger")
    return minimum


def _columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    text = given.get("columns")
    if text is None:
        return None
    names = tuple(n.strip() for n in text.split(",") if n.strip())
    if not names:
        raise InvalidConfigError("columns is empty: name at least one column, or leave the option out")
    if len(set(names)) != len(names):
        raise InvalidConfigError(f"columns = {text!r}: a column is named twice")
    return names


def _bootstrap(given: Mapping[str, str]) -> str:
    servers = given.get("sparklog.bootstrap.servers") or os.environ.get(BOOTSTRAP_ENVIRONMENT)
    if not servers:
        raise InvalidConfigError(
            'no broker is named: set .option("sparklog.bootstrap.servers", "host:port") '
            f"or the environment variable {BOOTSTRAP_ENVIRONMENT}"
        )
    return servers


def _subscription(given: Mapping[str, str]) -> Subscription:
    names = [n for n in ("subscribe", "assign", "subscribePattern") if n.lower() in given]
    if len(names) != 1:
        found = "none of them is" if not names else " and ".join(names) + " are"
        raise InvalidConfigError(f"exactly one of subscribe, assign and subscribePattern is needed; {found} given")
    text = given[names[0].lower()].strip()
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as e:
            raise InvalidConfigError(f"subscribePattern = {text!r} is not a regular expression: {e}") from e
        return Subscription(pattern=text)
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise InvalidConfigError("subscribe is empty: name at least one topic")
        return Subscription(topics=tuple(check_topic_name(t) for t in topics))
    parsed = _json_object(text, "assign", '{"topic": [0, 1]}')
    assign: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_partition(p) for p in partitions):
            raise InvalidConfigError(
                f'assign: topic {topic!r} needs a list of partition numbers, as in {{"topic": [0, 1]}}'
            )
        assign[check_topic_name(topic)] = tuple(sorted(set(partitions)))
    return Subscription(assign=assign)


def _starting(given: Mapping[str, str], *, streaming: bool | None) -> Position:
    default = "latest" if streaming else "earliest"
    position = _position(given, "starting", default)
    if streaming is False:
        latest = position.kind == "latest" or (position.kind == "offsets" and _has(position, LATEST_OFFSET))
        if latest:
            raise InvalidConfigError(
                "startingOffsets: a batch read cannot begin at latest (-1), there would be nothing to read"
            )
    return position


def _ending(given: Mapping[str, str]) -> Position:
    position = _position(given, "ending", "latest")
    if position.kind == "earliest" or (position.kind == "offsets" and _has(position, EARLIEST_OFFSET)):
        raise InvalidConfigError("endingOffsets: a read cannot end at earliest (-2), there would be nothing to read")
    return position


def _has(position: Position, offset: int) -> bool:
    return any(o == offset for offsets in position.per_partition.values() for o in offsets.values())


def _position(given: Mapping[str, str], prefix: str, default: str) -> Position:
    """Precedence as Kafka's source: one timestamp, timestamps per partition, offsets."""
    timestamp, by_timestamp, offsets = (f"{prefix}{s}" for s in ("Timestamp", "OffsetsByTimestamp", "Offsets"))
    if timestamp.lower() in given:
        return Position("timestamp", timestamp, timestamp_ms=_get(given, timestamp, _count, 0))
    if by_timestamp.lower() in given:
        return Position("timestamps", by_timestamp, parse_offsets(given[by_timestamp.lower()], by_timestamp, lowest=0))
    text = given.get(offsets.lower(), default).strip()
    if text.lower() in ("earliest", "latest"):
        return Position(text.lower(), offsets)
    return Position("offsets", offsets, parse_offsets(text, offsets, lowest=EARLIEST_OFFSET))


def parse_offsets(text: str, option: str, *, lowest: int) -> dict[str, dict[int, int]]:
    """Kafka's offsets JSON `{"topic": {"0": 12}}`; what a query reports as its `endOffset` may be given as it stands (its
    additions are left out, and the ids of the topics are not compared). Raises InvalidConfigError."""
    example = '{"topic": {"0": 12}}'
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(text, option, example).items():
        if topic in (IDS, INITIAL):
            continue
        if not isinstance(partitions, dict) or not partitions:
            raise InvalidConfigError(f"{option}: topic {topic!r} needs an object of partitions, as in {example}")
        result[topic] = {}
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool) or offset < lowest:
                raise InvalidConfigError(
                    f"{option}: topic {topic!r} has {partition!r}: {offset!r}; partition and value must be whole "
                    f"numbers, the value at least {lowest}, as in {example}"
                )
            result[topic][int(partition)] = offset
    return result


def _json_object(text: str, option: str, example: str) -> dict[str, Any]:
    words = "earliest, latest or " if option.endswith("Offsets") else ""
    try:
        parsed = json.loads(text)
    except ValueError as e:
        raise InvalidConfigError(f"{option} = {text!r} is not JSON ({e}); write {words}JSON such as {example}") from e
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidConfigError(f"{option} = {text!r}: write {words}JSON such as {example}")
    return parsed


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
