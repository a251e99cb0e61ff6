"""Checks of readers: transactions that delay them, groups that fall behind or lose records, Delta tables, and limits
of message sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparklog.cli.doctor.facts import Facts, GroupFacts
from sparklog.cli.doctor.findings import Check, Finding, Severity, named, quoted
from sparklog.cli.printing import duration
from sparklog.client.cluster_view import GroupPartition, number, retention

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription

LONG_OPEN_MS = 600_000
ENDING_MS = 60_000
"""Longest normal time between the decision about a transaction and its last marker."""
LAG_MIN = 1_000
LAG_HUGE = 1_000_000
LOOKS_BEHIND = 3
"""A group falls behind if it reads fewer records than are written between two checks, and its lag is more than this
multiple of the written records."""
LAKE_BEHIND_S = 300.0
MIRROR_BEHIND_S = 300.0
MIRROR_HELD_S = 900.0
"""Kafka's longest time of a transaction by default (`transaction.max.timeout.ms`)."""
RETENTION_SHARE = 0.8
"""Unread records are near deletion from this share of `retention.ms` or `retention.bytes` on."""
FRAME_ROOM_BYTES = 64 * 1024
"""Bytes of a frame that the batch cannot use, for the request's header."""


def hanging(facts: Facts) -> Iterator[Finding]:
    for producer in () if facts.cluster is None else facts.cluster.hanging:
        topic, partition = producer.partition
        yield Finding(
            Severity.error,
            f"producer {producer.producer_id} has a transaction open in {topic} partition {partition} from offset "
            f"{producer.first_offset:,} on that no coordinator knows; its last write was {duration(producer.quiet_ms / 1000)} ago",
            f"Readers of committed records stop there: {producer.held_back:,} offsets are held back, and no record behind them "
            "is compacted. The transaction never ends by itself.",
            "Abort the transaction: its records then stay invisible.",
            quoted("sparklog", "transaction", "abort", "--topic", topic, "--partition", partition, "--producer-id",
                   producer.producer_id),
        )  # fmt: skip


def long_open(facts: Facts) -> Iterator[Finding]:
    for transaction in () if facts.cluster is None else facts.cluster.transactions:
        late = transaction.timeout_ms >= 0 and transaction.age_ms > transaction.timeout_ms + ENDING_MS
        if transaction.state != "Ongoing" or (transaction.age_ms < LONG_OPEN_MS and not late):
            continue
        timeout = (
            f"its timeout is {duration(transaction.timeout_ms / 1000)}"
            if transaction.timeout_ms >= 0
            else "without a timeout"
        )
        yield Finding(
            Severity.error if late else Severity.warning,
            f"the transaction of {transaction.transactional_id} is open for {duration(transaction.age_ms / 1000)}; {timeout}",
            f"Readers of committed records stop at its first record in {_places(transaction.partitions)}.",
            "Let the producer end the transaction, or abort it: its records then stay invisible, and the producer gets an error.",
            quoted("sparklog", "transaction", "abort", transaction.transactional_id),
        )


def never_ending(facts: Facts) -> Iterator[Finding]:
    for transaction in () if facts.cluster is None else facts.cluster.transactions:
        if transaction.state in ("PrepareCommit", "PrepareAbort") and transaction.age_ms > ENDING_MS + max(
            0, transaction.timeout_ms
        ):
            yield Finding(
                Severity.error,
                f"the transaction of {transaction.transactional_id} is decided ({transaction.state}), but its markers are not written "
                f"in {_places(transaction.partitions)}",
                "Readers of committed records stop there, and the producer cannot begin another transaction.",
                "One of its partitions cannot be written: mend that partition, and the markers follow by themselves.",
                quoted("sparklog", "transaction", "describe", transaction.transactional_id),
            )


def _places(partitions: tuple[object, ...]) -> str:
    return (
        named([f"{p[0]}-{p[1]}" for p in partitions if isinstance(p, tuple)]) or "the partitions that it has written to"
    )


def lost_records(facts: Facts) -> Iterator[Finding]:
    for group in () if facts.cluster is None else facts.cluster.groups:
        lost = [p for p in group.partitions if p.committed < p.log_start]
        if lost:
            count = sum(p.log_start - p.committed for p in lost)
            yield Finding(
                Severity.error if _is_at_work(group) else Severity.warning,
                f"group {group.group_id} has not read {count:,} offsets of {_places(tuple(p.partition for p in lost))} that "
                "are deleted already",
                "Retention (or `delete-records`) was faster than the group; its readers continue at auto.offset.reset, or "
                "with an error.",
                "Keep more records (`retention.ms`, `retention.bytes`), read faster, and read lost records from another "
                "source; then set the group to the existing records.",
                quoted("sparklog", "group", "reset-offsets", group.group_id, "--topic", lost[0].partition.topic,
                       "--to-earliest"),
            )  # fmt: skip


def _is_at_work(group: GroupFacts) -> bool:
    return group.members > 0 or _read(group) > 0


def _read(group: GroupFacts) -> int:
    return sum(max(0, p.committed - p.committed_before) for p in group.partitions if p.committed_before >= 0)


def falls_behind(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    for group in () if cluster is None else cluster.groups:
        lag = group.lag
        if cluster is None or lag < LAG_MIN:
            continue
        if group.members == 0 and group.kind == "consumer":
            yield _behind(group, "has no members", "Start the group's consumers, or delete the group if it is unused.")
        elif cluster.over_s is None:
            if lag >= LAG_HUGE:
                yield _behind(group, "is far behind", "Run the command again, and compare the lag.")
        else:
            yield from _slow_reader(group, lag, cluster.over_s)


def _slow_reader(group: GroupFacts, lag: int, over_s: float) -> Iterator[Finding]:
    produced = sum(max(0, p.end - p.end_before) for p in group.partitions if p.end_before >= 0)
    read = _read(group)
    if read == 0:
        todo = "Are the group's consumers (or is its Spark query) stuck, or do they commit rarely? Look at their logs."
        yield _behind(group, f"has committed nothing in {over_s:.0f} s", todo)
    elif read < produced and lag > LOOKS_BEHIND * produced:
        pace = f"reads {read / over_s:,.0f}/s of {produced / over_s:,.0f}/s that are written"
        yield _behind(group, pace, "Add members (up to one per partition), or make them faster.")
    elif lag >= LAG_HUGE and read > produced:
        remaining = duration(lag * over_s / (read - produced))
        yield _behind(
            group, f"catches up in about {remaining}", "No action is needed if that is soon enough.", Severity.note
        )


def _behind(group: GroupFacts, how: str, todo: str, severity: Severity = Severity.warning) -> Finding:
    return Finding(
        severity,
        f"group {group.group_id} {how}; {group.lag:,} offsets are not read",
        "The group's results are late, and retention deletes unread records as well.",
        todo,
        quoted("sparklog", "group", "describe", group.group_id, "--members"),
    )


def near_retention(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    topics = {topic.name: topic for topic in (cluster.topics if cluster else ())}
    for group in () if cluster is None else cluster.groups:
        near = [p for p in group.partitions if p.lag and _is_near_end(p, topics.get(p.partition.topic))]
        if near:
            first = near[0].partition.topic
            keep_ms, keep_bytes = retention(topics[first])
            yield Finding(
                Severity.warning,
                f"group {group.group_id} has not read records of {_places(tuple(p.partition for p in near))} that retention "
                "deletes soon",
                f"They have used up {RETENTION_SHARE:.0%} or more of the topic's retention.ms or retention.bytes.",
                "Let the topic keep more records until the group has caught up.",
                quoted("sparklog", "topic", "alter", first, "--config",
                       f"retention.ms={2 * keep_ms if keep_ms > 0 else -1}" if _by_time(near[0], topics[first])
                       else f"retention.bytes={2 * keep_bytes}"),
            )  # fmt: skip


def _by_time(p: GroupPartition, topic: TopicDescription) -> bool:
    return retention(topic)[0] >= 0 and max(p.committed, p.log_start) < p.due_offset


def _is_near_end(p: GroupPartition, topic: TopicDescription | None) -> bool:
    if topic is None:
        return False
    if _by_time(p, topic):
        return True
    keep_bytes = retention(topic)[1]
    if keep_bytes < 0 or p.size_bytes < RETENTION_SHARE * keep_bytes or p.end <= p.log_start:
        return False
    return max(p.committed, p.log_start) - p.log_start < (1 - RETENTION_SHARE) * (p.end - p.log_start)


def lakes(facts: Facts) -> Iterator[Finding]:
    for lake in () if facts.cluster is None else facts.cluster.lakes:
        status = quoted("sparklog", "lake", "status", lake.topic)
        held = "The log keeps the records that the table lacks, and grows (lake.hold.retention)."
        if lake.paused:
            yield Finding(
                Severity.warning,
                f"the Delta table of topic {lake.topic} is paused: {lake.paused}",
                held,
                "Decide as the reason says, then resume it.",
                quoted("sparklog", "lake", "resume", lake.topic),
            )
        elif lake.error:
            yield Finding(
                Severity.warning,
                f"commits to the Delta table of topic {lake.topic} fail: {lake.error}",
                held,
                "Mend the cause; the worker tries again by itself.",
                status,
            )
        elif lake.behind_s > LAKE_BEHIND_S:
            yield Finding(
                Severity.warning,
                f"the Delta table of topic {lake.topic} is {duration(lake.behind_s)} behind; {lake.lag:,} offsets are missing",
                held,
                "Is a lake worker running? A broker starts one if deltalake is installed on its host (sparklog[lake]).",
                status,
            )


def mirrors(facts: Facts) -> Iterator[Finding]:
    for mirror in () if facts.cluster is None else facts.cluster.mirrors:
        status = quoted("sparklog", "mirror", "status", mirror.mirror)
        if mirror.lost:
            yield Finding(
                Severity.warning,
                f"the source had deleted {mirror.lost:,} offsets of topic {mirror.topic} before its mirror read them",
                "Readers of this topic pass over these records, which exist nowhere any more.",
                "Raise the retention at the source until the mirror has caught up.",
                status,
            )
        if mirror.refused:
            yield Finding(
                Severity.warning,
                f"{mirror.refused:,} records do not fit the columns of topic {mirror.topic}",
                "Readers of this topic pass over these records; they are kept beside it.",
                "Look at the reasons; add columns, or mend the producer. Retry the records after the promotion.",
                quoted("sparklog", "refused", "list", mirror.topic),
            )
        if mirror.paused:
            yield Finding(
                Severity.warning,
                f"the mirror of topic {mirror.topic} is paused: {mirror.paused}",
                "The topic gets no records of its source, whose retention goes on.",
                "Decide as the reason says, then resume the mirror.",
                quoted("sparklog", "mirror", "resume", mirror.mirror),
            )
        elif mirror.error:
            yield Finding(
                Severity.warning,
                f"the mirror of topic {mirror.topic} fails: {mirror.error}",
                "The topic gets no records of its source, whose retention goes on.",
                "Mend the cause; the worker tries again by itself.",
                status,
            )
        elif not mirror.has_worker:
            yield Finding(
                Severity.warning,
                f"no mirror worker has reported about topic {mirror.topic}",
                "The topic gets no records of its source, whose retention goes on.",
                "Set mirror.worker.enable on a broker, or run a worker.",
                quoted("sparklog", "mirror", "run"),
            )
        elif mirror.behind_s > MIRROR_BEHIND_S:
            yield Finding(
                Severity.warning,
                f"the mirror of topic {mirror.topic} is {duration(mirror.behind_s)} behind; {mirror.lag:,} offsets are missing",
                "Records that the source deletes before the mirror reads them are lost.",
                "Start more mirror workers, or look for the limit: the source, the network, the brokers here.",
                status,
            )
        if mirror.held_s > MIRROR_HELD_S:
            yield Finding(
                Severity.warning,
                f"{mirror.held:,} offsets of topic {mirror.topic} have waited at the source for {duration(mirror.held_s)} for "
                "the end of an open transaction",
                "Readers with read_committed and the mirror get none of these records, and a promotion waits for them.",
                "End its producer, or the transaction: kafka-transactions.sh or `sparklog transaction` finds it there.",
                status,
            )


def messages_beyond_frames(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None:
        return
    limits = [b.request_bytes_max for b in facts.cluster.brokers if b.request_bytes_max > 0]
    for topic in facts.cluster.topics if limits else ():
        message_bytes = number(topic, "max.message.bytes")
        if message_bytes > min(limits) - FRAME_ROOM_BYTES:
            yield Finding(
                Severity.warning,
                f"topic {topic.name}: max.message.bytes = {message_bytes:,}, but a broker takes frames of "
                f"{min(limits):,} bytes",
                "The broker refuses some batches that the topic allows with FRAME_TOO_LARGE, and closes the connection.",
                "Raise the broker's socket.request.max.bytes, or lower the topic's limit.",
                quoted("sparklog", "topic", "alter", topic.name, "--config",
                       f"max.message.bytes={max(1024, min(limits) - FRAME_ROOM_BYTES)}"),
            )  # fmt: skip


CHECKS = (
    Check("hanging-transactions", hanging),
    Check("long-open-transactions", long_open),
    Check("unfinished-transactions", never_ending),
    Check("lost-records", lost_records),
    Check("lag", falls_behind),
    Check("near-retention", near_retention),
    Check("lakes", lakes),
    Check("mirrors", mirrors),
    Check("messages-beyond-frames", messages_beyond_frames),
)
