"""The lake worker as a child process of the broker. It starts when the first topic has a Delta table."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping

from sparklog_broker.children.child import Child, ChildSpec

log = logging.getLogger(__name__)

NAME = "lake-worker"
POLL_INTERVAL_S = 1.0
LOCATION = "lake.location"


def lake_worker_spec(address: str, command_config: str) -> ChildSpec:
    """Return the settings of the worker's process. `command_config`: file with the worker's client settings; empty:
    plaintext."""
    command = (sys.executable, "-m", "sparklog.cli", "lake", "run", "--end-with-parent", "--bootstrap-servers", address)
    return ChildSpec(NAME, (*command, "--command-config", command_config) if command_config else command)


def has_lake(configs: Mapping[str, object]) -> bool:
    """Return True if a topic with these settings has a Delta table."""
    return bool(configs.get(LOCATION))


class LakeWorker(Child):
    """A child process that starts when a topic has a Delta table. Event-loop thread only."""

    def __init__(
        self,
        spec: ChildSpec,
        loop: asyncio.AbstractEventLoop,
        clock_s: Callable[[], float],
        is_needed: Callable[[], bool],
        obstacle: str = "",
    ) -> None:
        """`spec`: the process. `loop`: the broker's event loop. `clock_s`: a monotonic clock in s. `is_needed`: returns
        True if a topic has a Delta table. `obstacle`: reason why the worker cannot run; empty: none."""
        super().__init__(spec, loop, clock_s)
        self._is_needed = is_needed
        self._obstacle = obstacle
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process as soon as a topic has a Delta table."""
        self._waiting = self._loop.create_task(self._start_when_needed())

    async def _start_when_needed(self) -> None:
        while not self._is_needed():
            await asyncio.sleep(POLL_INTERVAL_S)
        if importlib.util.find_spec("deltalake") is None:
            self._obstacle = self._obstacle or "the package deltalake is not installed: pip install 'sparklog[lake]'"
        if self._obstacle:
            log.warning("a topic has a Delta table, but the broker cannot start a lake worker: %s", self._obstacle)
            return
        super().start()

    async def stop(self) -> None:
        """Stop the process, or the wait for the first table."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await super().stop()
