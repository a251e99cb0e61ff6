"""One child process of the broker: its start, its log, its restarts, its end.

The child's standard input is a lifeline (`sparklog.environment.lifeline`): the child must end when it reads the end of
file, so that it ends with the broker even if the broker is killed. Lines of its standard error become lines of the
broker's log. A line on its standard output that begins with `READY` shows that it serves, a line that begins with
`COUNT` has a number for the broker's metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from msgspec import Struct

from sparklog.environment.lifeline import Lifeline
from sparklog_broker.children.restarts import LineLimit, Restarts

READY = "listening on "
COUNT = "count "
COUNTS_MAX = 16
"""Largest number of names that a child can count."""
STOP_TIMEOUT_S = 10.0
LINE_BYTES_MAX = 16 * 1024
OOM_SCORE = 500
"""The child's OOM score: if the machine has no memory left, the kernel ends the child before the broker."""
_LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}


class ChildSpec(Struct, frozen=True):
    """The settings of one child process."""

    name: str
    """Name in the log."""
    command: tuple[str, ...]
    """Program and arguments."""
    variables: Mapping[str, str] | None = None
    """Environment variables; None for the broker's variables."""
    descriptors: tuple[int, ...] = ()
    """File descriptors that the child inherits under the same numbers, such as listening sockets."""
    memory_bytes_max: int = 0
    """Limit of the child's data segments in bytes (RLIMIT_DATA); 0 for none."""
    stop_timeout_s: float = STOP_TIMEOUT_S
    """Time for an orderly stop, in s. Then the child is killed."""


class Child:
    """Runs a child process until `stop`, and restarts it after each end. Event-loop thread only."""

    def __init__(
        self,
        spec: ChildSpec,
        loop: asyncio.AbstractEventLoop,
        clock_s: Callable[[], float],
        *,
        restarts: Restarts | None = None,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        """`spec`: the process. `loop`: the broker's event loop. `clock_s`: a monotonic clock in s. `restarts`: the
        pauses between starts; None: `Restarts()`. `on_ready`: called at each start with the text after `READY` in the
        child's line."""
        self.spec = spec
        self.restarts = restarts or Restarts()
        self.pid: int | None = None
        """Id of the running process; None while it is not running."""
        self.is_ready = False
        """True from the child's `READY` line until its end."""
        self.counts: dict[str, int] = {}
        """Numbers by their names, over all starts of the child."""
        self._counts_before: dict[str, int] = {}
        """The numbers at the child's last start."""
        self._loop = loop
        self._clock_s = clock_s
        self._on_ready = on_ready
        self._log = logging.getLogger(f"{__name__.rpartition('.')[0]}.{spec.name}")
        self._lines = LineLimit()
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline: Lifeline | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process, and restart it after each end."""
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop the process: close its lifeline and send SIGTERM, then SIGKILL after `stop_timeout_s`."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            began_s = self._clock_s()
            try:
                code = await self._run_once()
            except OSError as e:
                code = -1
                self._log.error("%s could not be started (%s)", self.spec.name, e)
            pause_s = self.restarts.pause_s(code, self._clock_s() - began_s)
            if pause_s is None:
                self._log.error(
                    "%s ended with exit code %d, which means a wrong configuration: the broker starts it again only "
                    "after its own restart",
                    self.spec.name,
                    code,
                )
                return
            self._log.warning("%s ended with exit code %d; restart in %.1f s", self.spec.name, code, pause_s)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> int:
        """Start the process, wait for its end, and return its exit code. Raises OSError if it cannot be started."""
        lifeline = Lifeline()
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=lifeline.read_end,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                env=None if self.spec.variables is None else dict(self.spec.variables),
                pass_fds=self.spec.descriptors,
                start_new_session=True,  # Ctrl-C reaches only the broker, which stops its children
            )
            lifeline.hand_over()
            self._counts_before = dict(self.counts)
            self.pid = process.pid
            self._limit(process.pid)
            self._log.info("%s started, process %d", self.spec.name, process.pid)
            await asyncio.gather(self._read_answers(process), self._read_log(process))
            return await process.wait()
        finally:
            lifeline.cut()
            if process is not None:
                # shielded: a second cancellation must not leave the process behind
                await asyncio.shield(self._end(process))
            self.pid, self.is_ready = None, False

    def _limit(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # the process may have ended, or the system has no /proc
            if self.spec.memory_bytes_max:
                resource.prlimit(pid, resource.RLIMIT_DATA, (self.spec.memory_bytes_max,) * 2)
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        # continue to read the log: a child that waits for room in the pipe could not stop
        ended = asyncio.gather(process.wait(), self._read_log(process), self._read_answers(process))
        done, _ = await asyncio.wait([ended], timeout=self.spec.stop_timeout_s)
        if not done:
            self._log.warning("%s did not stop in %.0f s: killed", self.spec.name, self.spec.stop_timeout_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also its own children, which may hold its pipes open
        await ended

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            if line.startswith(READY):
                self.is_ready = True
                if self._on_ready is not None:
                    self._on_ready(line.removeprefix(READY))
            elif line.startswith(COUNT):
                self._count(line.removeprefix(COUNT))

    def _count(self, text: str) -> None:
        """Note a number that the child has counted since its start: its name, a space, the number."""
        name, _, number = text.partition(" ")
        if number.isdecimal() and (name in self.counts or len(self.counts) < COUNTS_MAX):
            self.counts[name] = self._counts_before.get(name, 0) + int(number)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            admitted = self._lines.admit(self._clock_s())
            if admitted.suppressed:
                self._log.warning(
                    "%d lines of %s were dropped: too many per second", admitted.suppressed, self.spec.name
                )
            if admitted.is_written:
                level, _, rest = line.partition(" ")
                if level in _LEVELS:
                    self._log.log(_LEVELS[level], "%s", rest)
                else:
                    self._log.info("%s", line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the stream's lines without line ends. A line of more than LINE_BYTES_MAX is yielded in parts."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as e:
            line = await stream.readexactly(min(max(1, e.consumed), LINE_BYTES_MAX))
        except asyncio.IncompleteReadError as e:
            if e.partial:
                yield e.partial.decode(errors="replace").rstrip()
            return
        yield line.decode(errors="replace").rstrip()
