"""Statements of the SQL page. Each runs in a separate process that is killed after a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable

from sparklog.console.sql_child import (
    DATA,
    DATA_BYTES_MAX,
    DONE,
    ENDED,
    FAILED,
    FORK,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    KILL,
    ORDER,
    Failure,
    Job,
    Outcome,
    frame_head,
    job_frame,
)
from sparklog.console.work import BusyError
from sparklog.errors import ERRORS, InvalidQueryError, QueryCancelledError, SparklogError, UnknownServerError
from sparklog.format.decoders import json_decoder
from sparklog.settings import MIB

STATEMENTS_MAX = 2
"""Largest number of simultaneous statements. Each can use DATA_BYTES_MAX of memory."""
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
"""Variables of the forker: Arrow's other allocators reserve 1 GiB at once, and a process with threads should not
fork."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from sparklog.console.sql_child import main; main()"
)


class _Forker:
    """The forker: the child process that forks a process for each statement."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.is_alive = True
        self._control = control
        self._reader = reader
        self._writer = writer
        self._exit_codes: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        self._answers = asyncio.create_task(self._read_answers())

    def fork(self, connection: socket.socket) -> tuple[int, asyncio.Future[int]]:
        """Start a process that reads its job from `connection`. Returns the job's number, and a future of the process's
        exit code. Raises OSError."""
        number = next(self._numbers)
        socket.send_fds(self._control, [ORDER.pack(FORK, number)], [connection.fileno()])
        ended = self._exit_codes[number] = asyncio.get_running_loop().create_future()
        return number, ended

    def kill(self, number: int) -> None:
        """Kill a job's process if it runs."""
        if number in self._exit_codes and self.is_alive:
            self._control.send(ORDER.pack(KILL, number))

    async def close(self) -> None:
        """Kill the forker and all statements, and wait for their end."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()  # its children end with it
        await self.process.wait()
        await self._answers
        await _wait_closed(self._writer)

    async def _read_answers(self) -> None:
        try:
            while True:
                number, code = ENDED.unpack(await self._reader.readexactly(ENDED.size))
                self._exit_codes.pop(number).set_result(code)
        except (asyncio.IncompleteReadError, OSError):  # the forker has ended
            self.is_alive = False
            self._writer.close()
            for ended in self._exit_codes.values():
                ended.set_result(-signal.SIGKILL)
            self._exit_codes.clear()


class Statement:
    """A running statement. After `seconds_max` its process is killed, also while the result is read."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ended: asyncio.Future[int],
        kill: Callable[[], None],
        seconds_max: float,
    ) -> None:
        self.outcome: Outcome | None = None
        """The end of the result; None until the result has been read completely."""
        self._reader = reader
        self._writer = writer
        self._exit_code = ended
        self._kill = kill
        self._seconds_max = seconds_max
        self._is_late = self._is_stopped = False
        self._timer = asyncio.get_running_loop().call_later(seconds_max, self._end_late)

    async def started(self) -> None:
        """Wait until the first bytes of the file are there. Raises the errors of `data`."""
        await self._next()

    async def data(self) -> AsyncIterator[bytes]:
        """Yield the result's bytes. Raises QueryCancelledError: The statement was stopped, or reached its time limit;
        InvalidQueryError; SparklogError."""
        while True:
            kind, content = await self._next()
            if kind == DONE:
                self.outcome = json_decoder(Outcome).decode(content)
                return
            if kind == DATA:
                yield content

    def stop(self) -> None:
        """Kill the process if it runs. A second call does nothing."""
        self._is_stopped = True
        self._timer.cancel()
        self._kill()
        self._writer.close()

    async def end(self) -> None:
        """Stop the statement and wait until its process has ended, so that another statement can start."""
        self.stop()
        await asyncio.shield(self._exit_code)
        await _wait_closed(self._writer)

    def _end_late(self) -> None:
        self._is_late = True
        self._kill()

    async def _next(self) -> tuple[bytes, bytes]:
        try:
            kind, length = frame_head(await self._reader.readexactly(HEAD_BYTES))
            content = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            self._writer.close()
            raise await self._failure() from None
        if kind == FAILED:
            self._writer.close()
            failure = json_decoder(Failure).decode(content)
            raise ERRORS.get(failure.code, UnknownServerError)(failure.message)
        return kind, content

    async def _failure(self) -> SparklogError:
        """Return the error for a process that has ended without a frame DONE or FAILED."""
        returncode = await asyncio.shield(self._exit_code)
        if self._is_late:
            return QueryCancelledError(
                f"cancelled after {self._seconds_max:g} s: `sparklog sql` in a terminal has no such limit"
            )
        if self._is_stopped:
            return QueryCancelledError("cancelled")
        if returncode == -signal.SIGXCPU:
            return QueryCancelledError(
                "cancelled: the statement reached its limit of processor time; `sparklog sql` in a terminal has no "
                "such limit"
            )
        name = signal.Signals(-returncode).name if returncode < 0 else f"status {returncode}"
        return InvalidQueryError(
            f"the statement has ended its process ({name}): it needs more than {DATA_BYTES_MAX // MIB} MiB of memory, "
            "or DuckDB failed; other statements are not affected"
        )


class Statements:
    """Starts statements. Belongs to one event loop."""

    def __init__(self, at_once_max: int = STATEMENTS_MAX) -> None:
        self.running = 0
        """Number of statements whose process has not ended."""
        self._at_once_max = at_once_max
        self._forker: _Forker | None = None
        self._spawn_lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Start the forker unless it runs, so that the first statement does not wait a second for it.
        Raises BusyError."""
        async with self._spawn_lock:
            if self._forker is None or not self._forker.is_alive:
                self._forker = await _spawn()

    async def start(self, job: Job, seconds_max: float) -> Statement:
        """Start a statement. Its process is killed after `seconds_max`. Raises BusyError: `at_once_max` statements are
        running, or no process can be started."""
        if self.running >= self._at_once_max:
            raise BusyError(f"{self.running} SQL statements are running, of {self._at_once_max} allowed: try again")
        self.running += 1
        try:
            await self.prepare()
            forker = self._forker
            assert forker is not None  # prepared
            ours, theirs = socket.socketpair()
            with theirs:
                reader, writer = await asyncio.open_connection(sock=ours, limit=FRAME_BYTES_MAX)
                number, ended = forker.fork(theirs)
        except OSError as e:
            self.running -= 1
            raise BusyError(f"cannot start a process for the statement: {e.strerror or e}") from e
        except BaseException:
            self.running -= 1
            raise
        ended.add_done_callback(self._on_end)
        writer.write(job_frame(job))
        return Statement(reader, writer, ended, lambda: forker.kill(number), seconds_max)

    async def close(self) -> None:
        """Kill all statements, and wait for their end."""
        if self._forker is not None:
            await self._forker.close()

    def _on_end(self, ended: asyncio.Future[int]) -> None:
        self.running -= 1


async def _wait_closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a closed connection has released its descriptor."""
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _spawn() -> _Forker:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)]
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,  # Ctrl-C reaches only the console, which then ends the forker
            )
    except OSError as e:
        ours.close()
        raise BusyError(f"cannot start a process for statements: {e.strerror or e}") from e
    reader, writer = await asyncio.open_connection(sock=ours)
    return _Forker(process, ours, reader, writer)
