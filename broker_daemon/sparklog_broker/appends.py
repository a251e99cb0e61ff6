"""Appending to partitions: on the event loop when it is little, else on the partitions' I/O threads.

Whoever appends (clients, the transaction coordinator, the group coordinator) does it here, so that the appends to one
partition keep the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sparklog.errors import RequestTimedOutError, SparklogError, StorageError, StorageFullError
from sparklog.log.model import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog_broker.partition import Partition
from sparklog_broker.purgatory import Outcome

if TYPE_CHECKING:
    from sparklog_broker.broker import Broker

log = logging.getLogger(__name__)

Outcomes = list[AppendInfo | Exception]


class Write(NamedTuple):
    """One append: where, how (`run` is given the log, on whatever thread), and about how many bytes."""

    partition: Partition
    log: PartitionLog
    run: Callable[[PartitionLog], AppendInfo]
    size_bytes: int


_Numbered = list[tuple[int, Write]]
"""Position in the outcomes, and the append."""


async def append_each(broker: Broker, writes: Sequence[Write]) -> Outcomes:
    """Appends on the partitions' threads; one partition's failure is no other's.

    What follows from an append (high watermark, wake-ups) happens when the thread reports it, whether or not somebody
    still waits here: the peer may be gone by then.
    """
    if not writes:
        return []
    if len(writes) == 1 and broker.may_append_inline([writes[0].partition], writes[0].size_bytes, alone=True):
        return [_append_inline(broker, writes[0])]
    by_thread: dict[int, _Numbered] = {}
    for i, write in enumerate(writes):
        by_thread.setdefault(write.partition.thread, []).append((i, write))
    outcomes: Outcomes = [StorageError("not appended")] * len(writes)
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = len(by_thread)

    def deliver(group: _Numbered, results: Outcomes) -> None:
        nonlocal left
        left -= 1
        for (i, write), outcome in zip(group, results, strict=True):
            write.partition.appends_pending -= 1
            outcomes[i] = outcome
            _after_append(write.partition, outcome)
        if not left and not done.done():
            done.set_result(None)

    for thread, group in by_thread.items():
        size = sum(w.size_bytes for _, w in group)
        inline = len(writes) > 1 and broker.may_append_inline((w.partition for _, w in group), size, alone=False)
        for _, write in group:
            write.partition.appends_pending += 1
        if inline:
            started_at = loop.time()
            deliver(group, _run_each(group))
            broker.note_inline_append(started_at)
        else:
            broker.io.submit(
                thread, partial(_run_each, group), partial(_delivered, deliver, group), partial(_sync, group)
            )
    if left:
        await done
    return outcomes


def _append_inline(broker: Broker, write: Write) -> AppendInfo | Exception:
    """What the only append of a request comes to, without the steps that several on several threads need."""
    started_at = broker.loop.time()
    outcome = _outcome(write)
    broker.note_inline_append(started_at)
    _after_append(write.partition, outcome, alone=True)
    return outcome


def _delivered(
    deliver: Callable[[_Numbered, Outcomes], None], group: _Numbered, results: Outcomes, _: Exception | None
) -> None:
    deliver(group, results)


def _run_each(group: _Numbered) -> Outcomes:
    """On whatever thread."""
    return [_outcome(write) for _, write in group]


def _outcome(write: Write) -> AppendInfo | Exception:
    try:
        return write.run(write.log)
    except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
        return e


def _sync(group: _Numbered, results: Outcomes) -> Outcomes:
    """Runs on an I/O thread when all that had arrived has been appended: the first partition that has to be on the disk
    is fsynced for all appends to it. What could not be fsynced has failed, whether it is on the disk or not."""
    for i, (_, write) in enumerate(group):
        outcome = results[i]
        if isinstance(outcome, AppendInfo) and write.log.config.flush.at_append:
            try:
                write.log.make_durable(outcome.last_offset + 1)
            except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
                results[i] = e
    return results


def _after_append(partition: Partition, outcome: AppendInfo | Exception, *, alone: bool = False) -> None:
    """`alone`: nothing else of the request is still to come that readers had better get together with this."""
    if isinstance(outcome, AppendInfo):
        partition.storage_failing = False
        partition.on_appended(outcome, at_once=alone)
    elif isinstance(outcome, StorageFullError | StorageError):
        # A full disk fails every append: said once, until it has recovered.
        if not partition.storage_failing:
            log.error("partition %s: %s", partition.key, outcome)
        partition.storage_failing = True
    elif not isinstance(outcome, SparklogError):
        log.error("partition %s: an append failed", partition.key, exc_info=outcome)


async def wait_for_replicas(
    broker: Broker,
    timeout_ms: int,
    partitions: Sequence[Partition | None],
    outcomes: list[AppendInfo | Exception | None],
) -> None:
    """Returns when every append is below its partition's high watermark; those that are not in time, have failed."""
    waiting = {
        i: (partition, outcome.last_offset + 1)
        for i, (partition, outcome) in enumerate(zip(partitions, outcomes, strict=True))
        if partition is not None and isinstance(outcome, AppendInfo)
    }

    def replicated(_: Hashable | None) -> bool:
        for i, (partition, end) in list(waiting.items()):
            if partition.deleted or partition.error is not None or partition.replicas.high_watermark >= end:
                del waiting[i]
        return not waiting

    if replicated(None):
        return
    keys = [partition.key for partition, _ in waiting.values()]
    if await broker.produces.wait(keys, replicated, timeout_ms / 1000) is not Outcome.SATISFIED:
        for i, (partition, _) in waiting.items():
            outcomes[i] = RequestTimedOutError(
                f"partition {partition.key}: written, but not on all in-sync replicas within {timeout_ms} ms"
            )
