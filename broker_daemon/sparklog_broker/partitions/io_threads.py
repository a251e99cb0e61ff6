"""Threads that append and read cold data, so that the event loop never waits for a disk.

Each thread has one queue, and each partition one thread: its jobs run one after the other, in the order of their
submission. A thread takes all queued jobs (up to a limit), runs them, and hands all outcomes to the event loop with one
wake-up. The queues are bounded by `queued.max.request.bytes`: a job lives no longer than its request.
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
"""Called on the event loop with a job's result or its exception."""
_Job = tuple[Callable[[], Any], Deliver, Callable[[Any], Any] | None]


class IoThreads:
    """A fixed number of threads. `submit`, `run` and `stop` belong to the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executors: Executors, count: int) -> None:
        self._loop = loop
        self._workers: list[Worker[_Job]] = [executors.worker(f"io-{i}", self._work) for i in range(count)]

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def queue_lengths(self) -> list[int]:
        """Approximate number of waiting jobs by thread. Any thread."""
        return [len(worker) for worker in self._workers]

    def index_of(self, topic: str, partition: int) -> int:
        """Return the thread of a partition; a topic's partitions are spread evenly."""
        return (zlib.crc32(topic.encode()) + partition) % len(self._workers)

    def idlest(self) -> int:
        """Return the thread with the shortest queue, for jobs that need no order."""
        return min(range(len(self._workers)), key=lambda i: len(self._workers[i]))

    def submit(
        self, index: int, job: Callable[[], T], deliver: Deliver, finish: Callable[[T], T] | None = None
    ) -> None:
        """Run `job` on thread `index`, then `deliver(result, error)` on the event loop, even if the requester is gone.

        `finish` turns the result into another on the same thread, after all jobs that were queued together have run:
        its work for one of them (an fsync) covers the others.
        """
        self._workers[index].put((job, deliver, finish))

    def run(self, index: int, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` as `submit`, and return a future. Cancelling the future does not take the job back."""
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
        """Let the threads finish their queues and end; block until then."""
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
    except Exception as e:  # noqa: BLE001 - carried to the event loop, where the request is answered with it
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
