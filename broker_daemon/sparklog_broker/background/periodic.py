"""Repeated work on the event loop or on a separate thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future

from sparklog.errors import SparklogError

log = logging.getLogger(__name__)


class Periodic:
    """Repeats `work` after `pause_s` or a wake-up; at once if `work` has returned True. Errors are logged. Event-loop
    thread only.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Awaitable[bool | None]],
        pause_s: Callable[[], float],
    ) -> None:
        self._name = name
        self._loop = loop
        self._work = work
        self._pause_s = pause_s
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, first_pause_s: float = 0.0) -> None:
        self._task = self._loop.create_task(self._run(first_pause_s))

    def run_soon(self) -> None:
        """End the present pause, because there is work."""
        self._wake_up.set()

    async def stop(self) -> None:
        """Stop the repetition. Work in progress on a thread is left to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, pause_s: float) -> None:
        while True:
            if pause_s > 0:
                timer = self._loop.call_later(pause_s, self._wake_up.set)  # wait_for may swallow a cancellation
                await self._wake_up.wait()
                timer.cancel()
            self._wake_up.clear()
            pause_s = self._pause_s()
            try:
                if await self._work():
                    pause_s = 0.0
            except SparklogError as e:
                log.error("%s failed, next attempt in %.1f s: %s", self._name, pause_s, e)  # noqa: TRY400
            except Exception:
                log.exception("%s failed, next attempt in %.1f s", self._name, pause_s)


class Rounds:
    """Repeated work on a thread. `run` returns True if there is more work. Event-loop thread only, except for `run`."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        thread: Executor,
        run: Callable[[], bool],
        *,
        pause_s: Callable[[], float],
    ) -> None:
        """`thread`: an executor of one daemon thread; `stop` shuts it down."""
        self._thread = thread
        self._run = run
        self._running: Future[bool] | None = None
        self._periodic = Periodic(name, loop, self._round, pause_s)
        self.start, self.run_soon = self._periodic.start, self._periodic.run_soon

    async def stop(self, timeout_s: float) -> bool:
        """Begin no more rounds. Returns True if the round in progress has ended within `timeout_s`; otherwise its
        thread is not waited for any longer."""
        await self._periodic.stop()
        self._thread.shutdown(wait=False)
        if self._running is None or self._running.done():
            return True
        done, _ = await asyncio.wait([asyncio.wrap_future(self._running)], timeout=timeout_s)
        return bool(done)

    async def _round(self) -> bool:
        self._running = self._thread.submit(self._run)
        return await asyncio.shield(asyncio.wrap_future(self._running))
