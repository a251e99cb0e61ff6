"""A follower tells of a log start when it is on the disk."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sparklog_broker.cluster.follower_side.log_starts import LogStarts, is_written

from sparklog.errors import StorageFullError
from sparklog.log.partition_log import PartitionLog


class Log:
    """As far as it is asked here."""

    def __init__(self, start: int, written: int) -> None:
        self.log_start_offset, self.durable_log_start_offset = start, written


def run(logs: list[Log], checkpoints: list[Any]) -> tuple[list[tuple[int, bool]], int]:
    """Return the notifications in order, and the number of writes."""
    told: list[tuple[int, bool]] = []
    written = 0

    async def main() -> None:
        async def checkpoint() -> None:
            nonlocal written
            outcome = checkpoints[min(written, len(checkpoints) - 1)]
            written += 1
            await asyncio.sleep(0)
            outcome()

        starts = LogStarts(asyncio.get_running_loop(), checkpoint)
        for number, log in enumerate(logs):
            starts.write(cast(PartitionLog, log), lambda error, number=number: told.append((number, error is None)))  # type: ignore[misc]
        while len(told) < len(logs):
            await asyncio.sleep(0)
        starts.stop()

    asyncio.run(main())
    return told, written


def all_written(logs: list[Log]) -> None:
    for log in logs:
        log.durable_log_start_offset = log.log_start_offset


def test_one_checkpoint_is_for_all_that_wait() -> None:
    logs = [Log(5, 0), Log(7, 3)]
    assert not any(is_written(cast(PartitionLog, log)) for log in logs)
    assert run(logs, [lambda: all_written(logs)]) == ([(0, True), (1, True)], 1)


def test_a_replica_outside_the_checkpoint_is_reported() -> None:
    logs = [Log(5, 0), Log(7, 3)]

    def full() -> None:
        all_written(logs[:1])
        raise StorageFullError("of another disk")

    assert run(logs, [full]) == ([(0, True), (1, False)], 1)


def test_a_start_that_has_risen_meanwhile_does_not_hold_up_the_one_that_was_to_be_written() -> None:
    log = Log(5, 0)

    def written() -> None:
        log.durable_log_start_offset, log.log_start_offset = 5, 9

    assert run([log], [written]) == ([(0, True)], 1)
