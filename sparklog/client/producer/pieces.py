"""Tables cut by partition and size into pieces, each the rows of one batch, which is encoded and queued."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.accumulator import Accumulator
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.futures import Delivery
from sparklog.client.producer.parallel_encoding import Encoding, ParallelEncoder
from sparklog.client.producer.partitioner import StickyPartition
from sparklog.client.producer.producer_topic import ProducerTopic
from sparklog.client.producer.record_sizes import estimated_bytes, too_large
from sparklog.client.producer.rows import Rows
from sparklog.errors import SparklogError
from sparklog.settings import MIB

COMBINE_ROWS = 8192
SPREAD_BYTES_MIN, SPREAD_BYTES_MAX = 4 * MIB, 64 * MIB


class TableQueue:
    """The way of tables into the partitions' queues."""

    def __init__(
        self, accumulator: Accumulator, encoder: BatchEncoder, parallel: ParallelEncoder | None, batch_size_bytes: int
    ) -> None:
        """Create the way. `parallel`: encoder on other threads; None: the calling thread encodes."""
        self._accumulator = accumulator
        self._encoder = encoder
        self._parallel = parallel
        self._batch_size_bytes = batch_size_bytes

    def enqueue(self, rows: Rows, state: ProducerTopic) -> list[Delivery]:
        """Hand the rows to the partitions' queues. If they can be memory of another library, the call returns when no
        thread reads them any more. Raises MessageTooLargeError, BufferExhaustedError, and as `Accumulator.check_open`.
        """
        deliveries: list[Delivery] = []
        parallel = self._parallel
        if not rows.is_copy and rows.table.nbytes <= self._batch_size_bytes:  # one batch: nothing to do beside it
            parallel = None
        unfinished: deque[Encoding] = deque()
        taken = 0
        try:
            for chosen, piece in pieces_of(rows, state.info, state.sticky, self._batch_size_bytes):
                queue = state.queues[chosen]
                encoding = None if parallel is None else parallel.encoding_of(piece, state.info)
                if encoding is not None:
                    deliveries.append(self._accumulator.enqueue_encoding(queue, encoding))
                    taken += piece.num_rows
                    while unfinished and unfinished[0].done:
                        unfinished.popleft()
                    if not rows.is_copy:
                        unfinished.append(encoding)
                    continue
                for encoded in self._encoder.encode_within(piece, state.info):
                    deliveries.append(self._accumulator.enqueue(queue, encoded))
                    taken += encoded.record_count
        except SparklogError as e:
            if taken:
                total = rows.table.num_rows
                raise type(e)(f"{e} ({taken} of the {total} rows were already accepted and may be stored)") from e
            raise
        finally:
            for encoding in unfinished:
                encoding.wait()
        return deliveries


def pieces_of(
    rows: Rows,
    topic: TopicInfo,
    sticky: StickyPartition,
    batch_size_bytes: int,
    *,
    spread_bytes: tuple[int, int] = (SPREAD_BYTES_MIN, SPREAD_BYTES_MAX),
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut `rows` into pairs of a partition and the rows of one stored batch. Rows of a partition keep their order.
    `spread_bytes`: the smallest and the largest number of bytes of rows that are spread over partitions at a time.

    Raises MessageTooLargeError at once, before the first piece is taken.
    """
    max_bytes = topic.max_message_bytes
    table = rows.table
    chunks = max(c.num_chunks for c in table.columns)
    if chunks > 1 and table.num_rows // chunks < COMBINE_ROWS:
        table = table.combine_chunks()
    batches = [b for b in table.to_batches() if b.num_rows]
    for batch in batches:
        for _ in split_by_size(batch, max_bytes, max_bytes, topic.name):
            pass
    return _pieces(batches, rows.partition, topic, sticky, min(batch_size_bytes, max_bytes), spread_bytes)


def split_by_size(batch: pa.RecordBatch, target_bytes: int, max_bytes: int, topic: str) -> Iterator[pa.RecordBatch]:
    """Yield slices of at least one row and about `target_bytes`. A batch up to a quarter larger than `target_bytes`
    stays whole. Raises MessageTooLargeError for a row over `max_bytes`."""
    estimated = estimated_bytes(batch)
    if estimated <= min(target_bytes + target_bytes // 4, max_bytes):  # most; `nbytes` costs five times as much to tell
        yield batch
        return
    size = int(batch.nbytes)
    if size <= target_bytes + target_bytes // 4 and estimated <= max_bytes:
        yield batch
        return
    if batch.num_rows == 1:
        if estimated > max_bytes:
            raise too_large(topic, estimated, max_bytes)
        yield batch
        return
    pieces = min(batch.num_rows, max(2, -(-size // target_bytes)))
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield from split_by_size(batch.slice(start, rows), target_bytes, max_bytes, topic)


def _pieces(
    batches: list[pa.RecordBatch],
    where: int | np.ndarray | None,
    topic: TopicInfo,
    sticky: StickyPartition,
    target_bytes: int,
    spread_bytes: tuple[int, int],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    least_bytes, most_bytes = spread_bytes
    position = 0
    for batch in batches:
        # rows that are spread over partitions are copied, so only a window of them at a time
        window, per_row = batch.num_rows, 0
        if isinstance(where, np.ndarray):
            per_row = max(1, int(batch.nbytes) // batch.num_rows)
            window_bytes = min(max(least_bytes, target_bytes * topic.partitions), most_bytes)
            window = max(1, window_bytes // per_row)
        for start in range(0, batch.num_rows, window):
            part = batch.slice(start, window)
            part_where = where[position : position + part.num_rows] if isinstance(where, np.ndarray) else where
            position += part.num_rows
            if isinstance(part_where, np.ndarray):
                part_where = _without_sticky(part_where, sticky, per_row, target_bytes)
            for partition, its_rows in _by_partition(part, part_where, sticky.partitions):
                for piece in split_by_size(its_rows, target_bytes, topic.max_message_bytes, topic.name):
                    yield (sticky.take(estimated_bytes(piece), target_bytes) if partition < 0 else partition), piece


def _without_sticky(where: np.ndarray, sticky: StickyPartition, row_bytes: int, target_bytes: int) -> np.ndarray:
    """Return `where` with a sticky partition in place of -1 (no key). This is done before the rows are grouped by
    partition, so that a partition's rows keep their order, with and without a key."""
    keyless = np.flatnonzero(where < 0)
    if not len(keyless):
        return where
    chosen = where.copy()
    chosen[keyless] = sticky.take_rows(len(keyless), row_bytes, target_bytes)
    return chosen


def _by_partition(
    batch: pa.RecordBatch, where: int | np.ndarray | None, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield pairs of a partition and its rows in order. If `where` is None, the only pair is -1 (sticky) and all
    rows."""
    if where is None or isinstance(where, int):
        yield (-1 if where is None else where), batch
        return
    first = int(where[0])
    if bool((where == first).all()):
        yield first, batch
        return
    order = np.argsort(where.astype(np.int16), kind="stable")  # int16: NumPy sorts it by radix
    counts = np.bincount(where, minlength=partitions)
    taken = batch.take(pa.array(order))
    start = 0
    for partition, count in enumerate(counts.tolist()):
        if count:
            yield partition, taken.slice(start, count)
            start += count
