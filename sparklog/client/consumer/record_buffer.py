"""The records of a decoded batch, which `poll` returns in parts, and the rest of that batch."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.client.consumer.position import FetchedBatch, Position
from sparklog.client.reading.consumed import ConsumedBatch, records_of
from sparklog.errors import DeserializationError
from sparklog.types import Record, TopicPartition

CONVERT_ROWS = 10_000
"""Largest number of rows that are turned into records at once."""


class RecordBuffer:
    """The records of the polling thread that poll has not returned yet. An exception (Ctrl-C) at any line leaves them
    to the next poll."""

    def __init__(self) -> None:
        self._rest: FetchedBatch | None = None
        """Rows of the batch that are not records yet."""
        self._records: list[Record] = []
        self._returned_count = 0
        self._batch: ConsumedBatch | None = None
        """The batch of the records."""
        self.position: Position | None = None
        """The position that the records belong to."""

    def __bool__(self) -> bool:
        return self._returned_count < len(self._records)

    def fill(self, fetched: FetchedBatch) -> None:
        """Convert the batch to records, up to the first row that cannot be converted. Raises DeserializationError if
        that is the first row of the batch."""
        batch, rest = fetched.batch, None
        if batch.num_rows > CONVERT_ROWS:
            rest = fetched._replace(batch=batch.slice(CONVERT_ROWS, batch.num_rows - CONVERT_ROWS))
            batch = batch.slice(0, CONVERT_ROWS)
        try:
            records = records_of(batch)
        except DeserializationError as e:
            rows = batch.rows_below(e.offset)
            if not rows:
                raise
            rest = fetched._replace(batch=fetched.batch.slice(rows, fetched.batch.num_rows - rows))
            batch = batch.slice(0, rows)
            records = records_of(batch)
        self.position, self._batch = fetched.position, batch
        self._records, self._returned_count, self._rest = records, 0, rest

    def first(self, count: int) -> list[Record]:
        """Return the next `count` records, or all if there are fewer."""
        return self._records[self._returned_count : self._returned_count + count]

    def give_out(self, count: int) -> None:
        """Note that the next `count` records are consumed: their position moves past them."""
        assert self.position is not None
        assert self._batch is not None
        end = self._returned_count + count
        self.position.consumed = self._batch.offset_at(end)
        self._returned_count = end  # last: until then an exception leaves them to the next poll

    def remainder(self) -> ConsumedBatch:
        """Return the records that are still here, as a batch."""
        assert self._batch is not None
        return self._batch.slice(self._returned_count, len(self._records) - self._returned_count)

    def take_rest(self) -> FetchedBatch | None:
        """Remove and return the rows of the batch that are not records yet; None if there are none."""
        rest, self._rest = self._rest, None
        return rest

    def keep(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Drop the records, and the rest of the batch, if their position is not among `positions`."""
        if self._rest is not None and positions.get(self._rest.position.tp) is not self._rest.position:
            self._rest = None
        if self.position is not None and positions.get(self.position.tp) is not self.position:
            self.drop_records()

    def drop_records(self) -> None:
        """Drop the records; the rest of the batch stays."""
        self._records, self._returned_count, self.position, self._batch = [], 0, None, None
