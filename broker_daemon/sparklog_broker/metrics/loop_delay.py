"""The delay of the event loop, measured by a timer that compares its due time with the time at which it runs."""

from __future__ import annotations

import asyncio

from sparklog.histogram import Histogram

INTERVAL_S = 0.1


class LoopDelay:
    """Measures the delays of the event loop from `start` on. Event-loop thread only, except for `delays`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.delays = Histogram()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_at(self._loop.time() + INTERVAL_S, self._run, self._loop.time() + INTERVAL_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _run(self, due_s: float) -> None:
        self.delays.observe(max(0.0, self._loop.time() - due_s))
        self.start()
