"""Compression on other threads: several batches at once, while the caller prepares the next batches.

A batch takes its place in its partition's queue before it is encoded, so the order does not depend on the threads; the
sender waits for a batch when its turn comes. In `buffer.memory` the batch counts with its size before compression,
which bounds the work.
"""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.encoding import BatchEncoder, EncodedBatch
from sparklog.client.producer.record_sizes import estimated_bytes
from sparklog.errors import ClosedError, SparklogError

THREADS_MAX = 4
PARALLEL_BYTES_MIN = 64 * 1024
"""Smallest size in bytes of a batch that is encoded on another thread. For a smaller batch, handing it over takes
longer than encoding it."""


class Encoding:
    """The encoding of one batch's rows on another thread, which begins with `start`."""

    __slots__ = ("_encoder", "_future", "_rows", "_threads", "_topic", "record_count", "size_bytes")

    def __init__(
        self,
        encoder: BatchEncoder,
        threads: ThreadPoolExecutor,
        rows: pa.RecordBatch,
        topic: TopicInfo,
        size_bytes: int,
    ) -> None:
        self.record_count = rows.num_rows
        self.size_bytes = size_bytes
        self._encoder = encoder
        self._threads = threads
        self._rows = rows
        self._topic = topic
        self._future: Future[EncodedBatch] | None = None

    def start(self) -> None:
        """Start the encoding. Raises RuntimeError after `ParallelEncoder.close`."""
        self._future = self._threads.submit(self._encoder.encode_whole, self._rows, self._topic)

    @property
    def done(self) -> bool:
        return self._future is not None and self._future.done()

    def wait(self) -> None:
        """Wait until the rows are no longer read."""
        assert self._future is not None
        with suppress(CancelledError):
            self._future.exception()

    def result(self) -> EncodedBatch:
        """Wait for the batch. Raises SparklogError if it cannot be encoded, ClosedError if it was cancelled."""
        assert self._future is not None
        try:
            return self._future.result()
        except CancelledError as e:
            raise ClosedError("the producer was closed before these records were encoded") from e
        except (pa.ArrowException, MemoryError) as e:
            raise SparklogError(f"{self.record_count} records could not be encoded: {e}") from e


class ParallelEncoder:
    """Factory of `Encoding`s. Its threads start with the first encoding."""

    def __init__(self, encoder: BatchEncoder, threads: int) -> None:
        self._encoder = encoder
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sparklog-encode")

    def encoding_of(self, rows: pa.RecordBatch, topic: TopicInfo) -> Encoding | None:
        """Return the encoding of `rows`, not started yet; None if the rows have fewer bytes than PARALLEL_BYTES_MIN.
        The rows must fit into one batch of the topic without compression."""
        size_bytes = estimated_bytes(rows)
        if size_bytes < PARALLEL_BYTES_MIN:
            return None
        return Encoding(self._encoder, self._threads, rows, topic, size_bytes)

    def close(self) -> None:
        """Cancel the encodings that have not started."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def parallel_encoder(encoder: BatchEncoder) -> ParallelEncoder | None:
    """Return a parallel encoder if `encoder` compresses and the process can use more than one CPU; else None."""
    threads = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, THREADS_MAX
    )
    return ParallelEncoder(encoder, threads) if encoder.compresses and threads > 1 else None
