"""The records of a producer in a simulation: their futures, and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.testing._sim_programs import Program
from sparklog.types import TopicPartition


class SimFuture:
    """The outcome of a `send`."""

    def __init__(self, program: Program, task: asyncio.Task[int], tp: TopicPartition) -> None:
        self._program = program
        self._task = task
        self.partition = tp
        """The partition of the record."""

    def result(self, timeout: float | None = None) -> int:
        """Return the record's offset. Raises the error of the delivery, and TimeoutError after `timeout` s."""
        return self._program.wait(_shielded(self._task, timeout))


async def _shielded(task: asyncio.Task[int], timeout_s: float | None) -> int:
    async with asyncio.timeout(timeout_s):
        return await asyncio.shield(task)


async def all_done(tasks: Sequence[asyncio.Task[int]]) -> None:
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def encode(key: bytes | None, value: bytes | None, now_ms: int) -> bytearray:
    """Encode one record as a batch."""
    columns = [
        pa.array([key], pa.binary()),
        pa.array([value], pa.binary()),
        pa.nulls(1, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([now_ms * 1000], ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    rows = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    return bytearray(
        encode_batch(
            rows, schema_id=ENVELOPE_SCHEMA_ID, min_timestamp_ms=now_ms, max_timestamp_ms=now_ms, checksum=False
        )
    )
