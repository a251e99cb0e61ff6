"""Threads that append and that read cold data, so that the event loop never waits for a disk.

Each thread has one queue. Each partition belongs to one thread, which runs the partition's jobs in the order of their
submission. A thread runs all queued jobs (up to a limit), and passes all outcomes to the event loop with one wake-up.
`queued.max.request.bytes` bounds the queues, because a job lives no longer than its request.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sparklog.environment.executors import Executors, Worker

log = logging.getLogger(__name__)

T = TypeVar("T")
Deliver = Callable[[Any, Exception | None], None]
"""Called on the event loop with a job's result and error, one of which is None."""
_Job = tuple[Callable[[], Any], Deliver, Callable[[Any], Any] | None]


class IoThreads:
    """A fixed number of threads. `submit`, `run` and `stop` are called on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executors: Executors, count: int) -> None:
        self._loop = loop
        self._workers: list[Worker[_Job]] = [executors.worker(f"io-{i}", self._work) for i in range(count)]

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def queue_lengths(self) -> list[int]:
        """Approximate number of waiting jobs of each thread. Callable on any thread."""
        return [len(worker) for worker in self._workers]

    def index_of(self, topic: str, partition: int) -> int:
        """Return the index of a partition's thread. A topic's partitions are spread evenly."""
        return (zlib.crc32(topic.encode()) + partition) % len(self._workers)

    def idlest(self) -> int:
        """Return the index of the thread with the shortest queue, for jobs without an order."""
        return min(range(len(self._workers)), key=lambda i: len(self._workers[i]))

    def submit(
        self, index: int, job: Callable[[], T], deliver: Deliver, finish: Callable[[T], T] | None = None
    ) -> None:
        """Run `job` on thread `index`, then `deliver(result, error)` on the event loop, even if the request has ended.

        `finish(result)` returns the final result of a job without an error. It is called once for each job, on the same
        thread, but only after all jobs that the thread runs together. For example, the fsync in the first `finish` of a
        log covers all of these jobs on the log.
        """
        self._workers[index].put((job, deliver, finish))

    def run(self, index: int, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` like `submit`, and return a future. Cancelling the future does not stop the job."""
        future: asyncio.Future[T] = self._loop.create_future()

        def deliver(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast(T, result))

        self.submit(index, job, deliver)
        return future

    def stop(self) -> None:
        """Stop the threads after their queued jobs. Blocks until they have ended."""
        for worker in self._workers:
            worker.stop()

    def _work(self, jobs: list[_Job]) -> None:
        ran = [(deliver, finish, *_outcome(job)) for job, deliver, finish in jobs]
        outcomes = [(deliver, *_finished(finish, result, error)) for deliver, finish, result, error in ran]
        try:
            self._loop.call_soon_threadsafe(_deliver, outcomes)
        except RuntimeError:  # the loop is closed: the process ends
            return


def _outcome(job: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return job(), None
    except Exception as e:  # noqa: BLE001 - the event loop passes it to the request
        return None, e


def _finished(
    finish: Callable[[Any], Any] | None, result: Any, error: Exception | None
) -> tuple[Any, Exception | None]:
    return (result, error) if finish is None or error is not None else _outcome(lambda: finish(result))


def _deliver(outcomes: list[tuple[Deliver, Any, Exception | None]]) -> None:
    for deliver, result, error in outcomes:
        try:
            deliver(result, error)
        except Exception:
            log.exception("the outcome of a job could not be delivered")
