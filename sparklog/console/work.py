"""Threads for blocking requests to the cluster, limited in number so that many browsers cannot use all memory."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor
from typing import TypeVar

from sparklog.environment.executors import Executors

THREADS = 8
WAITING_MAX = 64
"""Largest number of functions that wait for a thread. One more raises BusyError."""

T = TypeVar("T")


class BusyError(Exception):
    """Too many requests, statements or sessions at once."""


class Work:
    """Runs functions in threads. Belongs to one event loop."""

    def __init__(self, executors: Executors, *, threads: int = THREADS, waiting_max: int = WAITING_MAX) -> None:
        self._pool: Executor = executors.pool("sparklog-console", threads)
        self._under_way = 0
        self._under_way_max = threads + waiting_max

    async def run(self, fn: Callable[[], T]) -> T:
        """Return the result of `fn`, or raise its error. Raises BusyError.

        If the caller is cancelled, `fn` still runs to its end, and occupies its thread until then.
        """
        if self._under_way >= self._under_way_max:
            raise BusyError(f"{self._under_way} requests are running already")
        self._under_way += 1
        loop = asyncio.get_running_loop()
        future = self._pool.submit(fn)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._on_end) if not loop.is_closed() else None)
        return await asyncio.wrap_future(future)

    async def steps(self, chunks: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
        """Yield the items of a blocking generator, each step in a thread.

        The generator is closed at the end, also if the client has disconnected.
        """
        lock = threading.Lock()  # `close` can be called while a step is running

        def step() -> bytes | None:
            with lock:
                return next(chunks, None)

        def close() -> None:
            with lock:
                chunks.close()

        try:
            while (piece := await self.run(step)) is not None:
                if piece:  # an empty piece only frees the thread for other requests between two steps
                    yield piece
        finally:
            with contextlib.suppress(RuntimeError):  # the pool is closed because the process ends
                self._pool.submit(close)

    def close(self) -> None:
        """Cancel the waiting functions. Running functions continue to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _on_end(self) -> None:
        self._under_way -= 1
