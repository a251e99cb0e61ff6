"""Threads as a parameter.

There are two kinds. A pool is for independent jobs. A worker is one thread with a queue: it runs the waiting items
together, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

J = TypeVar("J")
T = TypeVar("T")
J_contra = TypeVar("J_contra", contravariant=True)

GATHERED_MAX = 32
"""Largest number of items that a worker runs together."""


class Worker(Protocol[J_contra]):
    """One thread and its queue. The queue has no limit, so the code that submits items has to limit their number."""

    def put(self, item: J_contra) -> None: ...

    def __len__(self) -> int:
        """Return the approximate number of waiting items."""
        ...

    def stop(self) -> None:
        """Wait until all items are done, and end the thread. No item may be submitted afterwards."""
        ...


class Executors(Protocol):
    """The source of a process's threads."""

    def pool(self, name: str, threads: int) -> Executor:
        """Return an executor with up to `threads` threads. Its `shutdown` ends them."""
        ...

    def daemon(self, name: str) -> Executor:
        """Return an executor with one thread for jobs that may hang. The process can end without waiting for this
        thread."""
        ...

    def worker(self, name: str, run: Callable[[list[J]], None]) -> Worker[J]:
        """Start a worker, which calls `run` with the waiting items, in their order, at most GATHERED_MAX at once. `run`
        must not raise."""
        ...


class ThreadExecutors:
    """Executors with real threads."""

    def pool(self, name: str, threads: int) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def daemon(self, name: str) -> Executor:
        return _DaemonExecutor(name)

    def worker(self, name: str, run: Callable[[list[J]], None]) -> Worker[J]:
        return _ThreadWorker(name, run)


def future_of(
    fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Future[T], Callable[[], None]]:
    """Return a future, and the job that calls `fn` and sets the future's outcome, as a thread of a pool does."""
    future: Future[T] = Future()

    def job() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = fn(*args, **kwargs)
        except BaseException as e:  # noqa: BLE001 - becomes the future's outcome, as in a pool
            future.set_exception(e)
        else:
            future.set_result(result)

    return future, job


class _DaemonExecutor(Executor):
    """An executor with one thread, for which the interpreter does not wait at its exit, unlike for a pool's threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: _ThreadWorker[Callable[[], None]] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future, job = future_of(fn, args, kwargs)
        if self._worker is None:
            self._worker = _ThreadWorker(self._name, _run_each)
        self._worker.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the submitted jobs, but do not wait for it, whatever `wait` is."""
        if self._worker is not None:
            self._worker.end()


def _run_each(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


class _ThreadWorker(Generic[J]):
    def __init__(self, name: str, run: Callable[[list[J]], None]) -> None:
        self._run = run
        self._queue: SimpleQueue[J | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, item: J) -> None:
        self._queue.put(item)

    def __len__(self) -> int:
        return self._queue.qsize()

    def stop(self) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """End the thread after the submitted items, without waiting for it."""
        self._queue.put(None)

    def _work(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            items, ended = [first], False
            while len(items) < GATHERED_MAX:
                try:
                    item = self._queue.get_nowait()
                except Empty:
                    break
                if item is None:
                    ended = True
                    break
                items.append(item)
            # no variable may keep the items alive while the thread waits for the next one
            del first
            self._run(items)
            items.clear()
            if ended:
                return
