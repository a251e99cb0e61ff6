"""Reading partitions over a simulated connection, with the product's rules for answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.errors import OffsetOutOfRangeError, SparklogError, error_from_code
from sparklog.format.batch import ATTRIBUTE_CONTROL, iterate_batches
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.testing._sim_client import SimClient
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

FETCH_WAIT_MS = 200
FETCH_BYTES = 64 * 1024


class Row(NamedTuple):
    """One record."""

    offset: int
    key: bytes | None
    value: bytes | None


class SimReader:
    """Positions of partitions, advanced by `poll`."""

    def __init__(self, client: SimClient, *, committed: bool) -> None:
        self._client = client
        self._isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        self.positions: dict[TopicPartition, int] = {}
        self._restarted: dict[str, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)

    def take_restarts(self) -> dict[str, int]:
        """Return the partitions whose position was deleted since the last call, with the log starts at which they
        continue."""
        restarted, self._restarted = self._restarted, {}
        return restarted

    async def poll(
        self, *, wait_ms: int = FETCH_WAIT_MS, max_bytes: int = FETCH_BYTES
    ) -> dict[TopicPartition, list[Row]]:
        """Return the next rows. Raises BrokerNotAvailableError, and a partition's error if no other one has rows."""
        asked = sorted(self.positions)
        if not asked:
            return {}
        request = FetchRequest(
            wait_ms, 1, max_bytes, self._isolation,
            [FetchPartition(*tp, self.positions[tp], max_bytes) for tp in asked],
        )  # fmt: skip
        answer, payload = await self._client.ask(Api.FETCH, request, FetchResponse)
        found: dict[TopicPartition, list[Row]] = {}
        failed: SparklogError | None = None
        start = 0
        for tp, result in zip(asked, answer.results, strict=True):
            data = payload[start : start + result.length_bytes]
            start += result.length_bytes
            if tp in self.positions:  # it may have been released meanwhile
                try:
                    rows = self._take(tp, result, data)
                except SparklogError as e:
                    failed = e
                    continue
                if rows:
                    found[tp] = rows
        if failed is not None and not found:
            raise failed
        return found

    def _take(self, tp: TopicPartition, result: FetchResult, data: memoryview) -> list[Row]:
        if result.error_code:
            error = error_from_code(result.error_code, result.message)
            if isinstance(error, OffsetOutOfRangeError) and result.log_start_offset > self.positions[tp]:
                self.positions[tp] = result.log_start_offset
                self._restarted[str(tp)] = result.log_start_offset
                return []
            raise error
        aborted = AbortedOffsets(result.aborted)
        rows: list[Row] = []
        offset = self.positions[tp]
        for at, header in iterate_batches(data, verify=True):
            if header.attributes & ATTRIBUTE_CONTROL == 0 and not aborted.covers(header):
                batch, offsets = decode_rows(data[at : at + header.size_bytes], ENVELOPE_SCHEMA, header, [0, 1])
                numbers = row_offsets(header, offsets).tolist()
                columns = zip(numbers, batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
                rows += [Row(*row) for row in columns if row[0] >= offset]
            self.positions[tp] = header.next_offset
        return rows
