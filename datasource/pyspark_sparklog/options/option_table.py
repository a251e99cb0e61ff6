"""The table of options: validation, documentation and error messages come from it.

Names and meaning are those of Spark's Kafka source and sink. `kafka.X` is a setting of Kafka's clients
(`kafka_settings`), else an alias of `sparklog.X`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag
from functools import cache

from sparklog.settings import Scope, settings_of

BOOTSTRAP_ENVIRONMENT = "SPARKLOG_BOOTSTRAP_SERVERS"


class OptionUse(Flag):
    """The kinds of queries in which an option has an effect. Kinds can be combined."""

    STREAM = 1
    BATCH = 2
    SINK = 4
    SOURCE = STREAM | BATCH
    ALL = STREAM | BATCH | SINK

    def describe(self) -> str:
        names = {
            OptionUse.STREAM: "streaming reads",
            OptionUse.BATCH: "batch reads",
            OptionUse.SOURCE: "reads",
            OptionUse.SINK: "writes",
            OptionUse.ALL: "reads and writes",
        }
        return names[self]


@dataclass(frozen=True)
class Option:
    """One option: its uses, its values, its default as text, and its effect."""

    name: str
    where: OptionUse
    type_name: str
    default: str
    doc: str


_S, _B, _SRC, _SINK, _ALL = OptionUse.STREAM, OptionUse.BATCH, OptionUse.SOURCE, OptionUse.SINK, OptionUse.ALL
_OFFSETS = "earliest, latest or JSON"
_BY_TIMESTAMP = 'JSON {"topic": {"0": ms}}'

OPTIONS: tuple[Option, ...] = (
    Option("sparklog.bootstrap.servers", _ALL, "host:port,…", f"${BOOTSTRAP_ENVIRONMENT}", "Brokers to ask first."),
    Option("subscribe", _SRC, "topic,…", "", "Topics to read. Exactly one of subscribe, assign, subscribePattern."),
    Option("assign", _SRC, 'JSON {"topic": [0, 1]}', "", "Topic partitions to read."),
    Option("subscribePattern", _SRC, "regular expression", "", "Reads every topic with a part of its name that matches, also topics that are created later (the expressions of java.util.regex; `^` and `$` for the whole name)."),
    Option("startingOffsets", _SRC, "earliest, latest, history or JSON", "latest in a stream, earliest in a batch", "Start of a new query; -2 is earliest, -1 latest. history reads the offsets that the topic's Delta table has from the table, also after a restart, and goes on with the log. A restarted query continues from its checkpoint, new partitions begin at earliest."),
    Option("startingTimestamp", _SRC, "ms since 1970", "", "Begin with the first record of at least this timestamp; goes before startingOffsetsByTimestamp and startingOffsets."),
    Option("startingOffsetsByTimestamp", _SRC, _BY_TIMESTAMP, "", "The same per partition."),
    Option("startingOffsetsByTimestampStrategy", _SRC, "error, latest", "error", "Result for a partition without a record of that timestamp."),
    Option("endingOffsets", _B, _OFFSETS, "latest", "End of a batch read (exclusive); -1 is latest."),
    Option("endingTimestamp", _B, "ms since 1970", "", "End before the first record of at least this timestamp; latest where there is none."),
    Option("endingOffsetsByTimestamp", _B, _BY_TIMESTAMP, "", "The same per partition."),
    Option("maxOffsetsPerTrigger", _S, "count", "", "Most records of one micro-batch, shared among partitions by their backlog."),
    Option("minOffsetsPerTrigger", _S, "count", "", "A micro-batch waits until this many records are there, or for maxTriggerDelay."),
    Option("maxTriggerDelay", _S, "time (500ms, 30s, 15m, 1h)", "15m", "Longest wait for minOffsetsPerTrigger."),
    Option("minPartitions", _SRC, "count", "", "At least about this many Spark tasks; large partitions are split."),
    Option("maxRecordsPerPartition", _SRC, "count", "", "Most records of one Spark task."),
    Option("failOnDataLoss", _SRC, "true, false", "true", "Fail when unread records are gone; false warns and continues."),
    Option("includeHeaders", _ALL, "true, false", "false", "Adds the column headers of an envelope topic."),
    Option("includeMetadata", _SRC, "true, false", "false", "Adds _topic, _partition, _offset, _timestamp to a typed topic's columns."),
    Option("columns", _SRC, "name,…", "all", "Columns to read, in this order. Through the socket, the broker leaves the others out of batches of more than 16 KiB if that saves at least an eighth of the batch; it sends other batches whole. Only these columns are decoded. A name with a comma, or with blanks at an end, stands in backquotes, as in Spark SQL."),
    Option("sparklog.isolation.level", _SRC, "read_committed, read_uncommitted", "read_committed", "read_committed gives only records of committed transactions and those of none, up to the first transaction that is open; read_uncommitted gives all."),
    Option("sparklog.group.id", _S, "text", "", "Publishes the positions that the checkpoint has committed as the offsets of this consumer group, so that `sparklog group describe` shows the lag; they are never read."),
    Option("sparklog.local.read", _SRC, "auto, off", "auto", "auto maps the broker's files where they are visible on the same host; off uses the socket."),
    Option("sparklog.check.crcs", _SRC, "true, false", "true", "true verifies every batch's checksum."),
    Option("sparklog.fetch.max.bytes", _SRC, "bytes", "4194304", "Most bytes of one fetch through the socket; a larger batch of the log comes alone."),
    Option("sparklog.max.partition.fetch.bytes", _SRC, "bytes", "4194304", "The same (a task reads one partition): the smaller one counts."),
    Option("sparklog.client.rack", _SRC, "text", "", "Rack of the executors, as in the brokers' broker.rack: tasks read from an in-sync replica there, if the brokers have replica.selector.class."),
    Option("sparklog.fetch.max.wait.ms", _SRC, "ms", "500", "Longest wait of one fetch for records of a transaction that is still open."),
    Option("sparklog.broker.wait.ms", _ALL, "ms", "60000", "Longest time that a running query waits for a missing broker."),
    Option("topic", _SINK, "topic", "", "Topic to write to; goes before a column named topic."),
    Option("sparklog.strict.columns", _SINK, "true, false", "false", "true makes a column that an envelope topic does not take an error; false leaves it out, as Kafka's sink does."),
    Option("sparklog.delivery.guarantee", _SINK, "exactly-once, at-least-once", "exactly-once", "exactly-once writes each micro-batch, and each batch write, as one transaction; at-least-once writes with acks=all, visible at once and again when Spark tries again."),
    Option("sparklog.transaction.timeout.ms", _SINK, "ms", "3600000 in a stream", "A write that has not ended after this time is aborted; until then readers with read_committed wait for it. A batch write without this option may take up to 7 days; when its driver is gone, the write is aborted within a minute."),
    Option("txnAppId", _SINK, "text", "", "Batch writes: with txnVersion, names the write as Delta's option does, so that it happens once however often it is tried. Streams: the name under which batches are counted, instead of the query's id; a new one lets a query go on whose checkpoint was set back."),
    Option("txnVersion", _SINK, "number", "", "Batch writes: a version that is not above the last one committed under txnAppId is skipped."),
)  # fmt: skip

PRODUCER_OPTIONS: tuple[Option, ...] = tuple(
    Option(f"sparklog.{s.name}", _ALL if s.name == "request.timeout.ms" else _SINK, s.type_name, str(s.default), s.doc)
    for s in settings_of(Scope.PRODUCER).values()
    if s.name not in ("transactional.id", "transaction.timeout.ms")
)

SECURITY_OPTIONS: tuple[Option, ...] = tuple(
    Option(f"sparklog.{s.name}", _ALL, "text", str(s.default), s.doc) for s in settings_of(Scope.CLIENT).values()
)
"""Options of connections: the security settings of every client."""


@cache
def options_for(where: OptionUse) -> Mapping[str, Option]:
    """Return the options for a use, by their names in lower case."""
    return {o.name.lower(): o for o in OPTIONS + PRODUCER_OPTIONS + SECURITY_OPTIONS if o.where & where}


ALIASES = {
    "isolation.level": "sparklog.isolation.level",
    "delivery.guarantee": "sparklog.delivery.guarantee",
    "group.id": "sparklog.group.id",
}
"""Further names of options, in lower case; besides, `kafka.X` is an alias of `sparklog.X`."""

ADDED_BY_SPARK = frozenset({"path", "queryname", "checkpointlocation"})

WITHOUT_EFFECT: dict[str, str] = {
    "groupidprefix": "sparklog's source needs no consumer group",
    "sparklog.group.id": "only a streaming query publishes its progress to a group",
    "kafkaconsumer.polltimeoutms": "use sparklog.broker.wait.ms",
    "fetchoffset.numretries": "use sparklog.broker.wait.ms",
    "fetchoffset.retryintervalms": "use sparklog.broker.wait.ms",
}
"""Options that are accepted and have no effect, in lower case, with the reason: those of Spark's Kafka source that a
job can carry over, and `sparklog.group.id` outside a streaming read."""

NOT_IN_A_STREAM = {
    "endingoffsets": "ending offset not valid in streaming queries: leave endingOffsets out",
    "endingoffsetsbytimestamp": "ending timestamp not valid in streaming queries: leave endingOffsetsByTimestamp out",
    "endingtimestamp": "ending timestamp not valid in streaming queries: leave endingTimestamp out",
}
"""Options that a streaming read refuses, with the error text of Spark's Kafka source. Any other known option that does
not apply to a query is ignored with a warning."""


def markdown_table(where: OptionUse) -> str:
    """Return the options that are valid in `where`, as a Markdown table."""
    rows = options_for(where).values()
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{o.name}` | {o.type_name} | {o.default or '-'} | {o.doc} |" for o in rows]
    return "\n".join(lines) + "\n"
