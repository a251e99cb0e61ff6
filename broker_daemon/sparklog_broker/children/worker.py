"""Workers as child processes of the broker: the lake worker and the mirror worker. A worker starts when the first topic
needs it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping

from msgspec import Struct

from sparklog_broker.children.child import Child, ChildSpec

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


class WorkerKind(Struct, frozen=True):
    """One kind of worker."""

    command: str
    """Command of `sparklog` with the subcommand `run`."""
    setting: str
    """Setting of a topic that needs the worker, if it is not empty."""
    need: str
    """Need of such a topic, in words."""
    package: str = ""
    """Package that the worker needs; empty: none."""
    extra: str = ""
    """Extra of sparklog that installs the package."""

    @property
    def name(self) -> str:
        """Name of the child process."""
        return f"{self.command}-worker"

    def is_needed(self, configs: Mapping[str, object]) -> bool:
        """Return True if a topic with these settings needs the worker."""
        return bool(configs.get(self.setting))


LAKE = WorkerKind("lake", "lake.location", "a topic has a Delta table", "deltalake", "lake")
MIRROR = WorkerKind("mirror", "mirror.name", "a topic mirrors a topic of a Kafka cluster")


def worker_spec(kind: WorkerKind, address: str, command_config: str) -> ChildSpec:
    """Return the settings of a worker's process. `command_config`: file with the worker's client settings; empty:
    plaintext."""
    run = (sys.executable, "-m", "sparklog.cli", kind.command, "run", "--end-with-parent")
    command = (*run, "--bootstrap-servers", address)
    return ChildSpec(kind.name, (*command, "--command-config", command_config) if command_config else command)


class Worker(Child):
    """A child process that starts when a topic needs it. Event-loop thread only."""

    def __init__(
        self,
        kind: WorkerKind,
        spec: ChildSpec,
        loop: asyncio.AbstractEventLoop,
        clock_s: Callable[[], float],
        is_needed: Callable[[], bool],
        obstacle: str = "",
    ) -> None:
        """`spec`: the process. `loop`: the broker's event loop. `clock_s`: a monotonic clock in s. `is_needed`: returns
        True if a topic needs the worker. `obstacle`: reason why the worker cannot run; empty: none."""
        super().__init__(spec, loop, clock_s)
        self._kind = kind
        self._is_needed = is_needed
        self._obstacle = obstacle
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process as soon as a topic needs it."""
        self._waiting = self._loop.create_task(self._start_when_needed())

    async def _start_when_needed(self) -> None:
        while not self._is_needed():
            await asyncio.sleep(POLL_INTERVAL_S)
        kind = self._kind
        if kind.package and importlib.util.find_spec(kind.package) is None:
            missing = f"the package {kind.package} is not installed: pip install 'sparklog[{kind.extra}]'"
            self._obstacle = self._obstacle or missing
        if self._obstacle:
            log.warning("%s, but the broker cannot start a %s worker: %s", kind.need, kind.command, self._obstacle)
            return
        super().start()

    async def stop(self) -> None:
        """Stop the process, or the wait for the first topic."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await super().stop()
