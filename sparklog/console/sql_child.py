"""The processes that run the statements of the console's SQL page, each within limits of the operating system.

DuckDB does not count all the memory of a statement, its planner ignores interrupts, and a statement can crash the
process. So the console runs no statement itself. It starts one process, the forker, which imports the libraries and
forks a process for each statement. A fork takes milliseconds; a start of Python with the libraries takes a second.

The statement's process reads one `Job` from its socket and writes frames. A frame is one byte for the kind, four bytes
for the length (big endian), and the content.

RLIMIT_DATA limits the memory, because it counts only memory that the process does not share. RLIMIT_AS would also
count the broker's files, which are mapped as a whole.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import msgspec

from sparklog.errors import (
    InvalidConfigError,
    InvalidQueryError,
    InvalidRequestError,
    SparklogError,
    UnknownServerError,
)
from sparklog.query.explain import Advice
from sparklog.security.client_security import ClientSecurity
from sparklog.security.secrets import Secret
from sparklog.settings import MIB

MEMORY_LIMIT_BYTES = 512 * MIB
"""Memory limit of DuckDB."""
DATA_BYTES_MAX = 1280 * MIB
"""Memory limit of the process: DuckDB's limit, 250 MiB for the libraries and their threads, and the memory that DuckDB
does not count."""
ADVICE = Advice(
    files="The console reads no files: `sparklog sql --allow-files DIRECTORY` in a terminal reads those of a directory",
    memory=f"the statement needs more than {MEMORY_LIMIT_BYTES // MIB} MiB of memory: `sparklog sql --memory-limit` in a "
    "terminal allows more",
)
THREADS_MAX = 4
COLUMNS_MAX = 500
CELLS_MAX = 100_000
"""Largest number of cells of a page. A page with many columns has fewer rows."""
FRAME_BYTES_MAX = 256 * 1024
STARTED, DATA, DONE, FAILED = b"S", b"D", b"E", b"X"
"""Kinds of frames: the first rows have a form in the file, which begins; bytes of the result; `Outcome`; `Failure`."""
ORDER = struct.Struct("=cI")
FORK, KILL = b"F", b"K"
"""Kinds of orders to the forker. An order has a kind and the number of a job."""
ENDED = struct.Struct("=Ii")
"""An answer of the forker: number of a job, exit code of the job's process."""
_HEAD = struct.Struct(">cI")
_PR_SET_PDEATHSIG = 1
_NICE = 5
"""Niceness of statements, so that the console's pages have priority."""

_log = logging.getLogger(__name__)

Send = Callable[[bytes, Any], None]


class Job(NamedTuple):
    """A statement, and the limits of its process."""

    bootstrap_servers: str
    security: ClientSecurity | None
    request_timeout_ms: int
    query: str
    format: str
    """Format of a file with all rows; "" for a page, which has the first rows as an Arrow stream."""
    rows_max: int
    """Largest number of rows of a page."""
    bytes_max: int
    """Largest size of a page's rows."""
    cpu_s: int
    """Largest processor time of the process, in seconds."""


class Outcome(NamedTuple):
    """The end of a result."""

    is_complete: bool
    """False if the result has more rows than were sent."""
    rows_read: int
    bytes_read: int


class Failure(NamedTuple):
    """The error that ended the statement, as its wire code and text."""

    code: int
    message: str


class _JobPickler(pickle.Pickler):
    """Pickles secrets, which refuse to be pickled elsewhere. The socket connects the console and its own child only."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Secret):
            return Secret, (value.reveal(),)
        if isinstance(value, ClientSecurity):
            return ClientSecurity, tuple(getattr(value, f.name) for f in fields(value))
        return NotImplemented


def job_frame(job: Job) -> bytes:
    """Encode a job as a frame."""
    packed = io.BytesIO()
    _JobPickler(packed).dump(job)
    return frame(DATA, packed.getvalue())


def frame(kind: bytes, content: bytes | memoryview) -> bytes:
    """Encode a frame."""
    return _HEAD.pack(kind, len(content)) + content


def frame_head(data: bytes) -> tuple[bytes, int]:
    """Return the kind and content length of a frame, from its first `HEAD_BYTES` bytes."""
    kind, length = _HEAD.unpack(data)
    return kind, length


HEAD_BYTES = _HEAD.size


def run(job: Job, send: Send) -> None:
    """Run a statement and send its result. Raises InvalidQueryError: The result has more columns than a page shows;
    SparklogError."""
    import pyarrow as pa

    from sparklog.console.files import FORMATS, file_pieces
    from sparklog.query.session import SqlSession

    class Session(SqlSession):
        _advice = ADVICE

    if job.format and job.format not in FORMATS:
        raise InvalidRequestError(f"format {job.format!r}: use one of {', '.join(FORMATS)}")
    with (
        Session(
            job.bootstrap_servers,
            memory_limit_bytes=MEMORY_LIMIT_BYTES,
            threads=min(THREADS_MAX, os.cpu_count() or 1),
            request_timeout_ms=job.request_timeout_ms,
            security=job.security,
        ) as session,
        session.execute(job.query) as result,
    ):
        is_complete = True
        if job.format:
            pieces = filter(None, file_pieces(result, result.schema, job.format))
            first = next(pieces, b"")  # an error up to here is shown on a page, a later one breaks off the file
            send(STARTED, b"")
            for piece in chain([first], pieces):
                _send_all(send, piece)
        else:
            columns = len(result.schema)
            if columns > COLUMNS_MAX:
                raise InvalidQueryError(
                    f"the result has {columns:,} columns: a page shows {COLUMNS_MAX} at most; save it as a file"
                )
            rows_max = min(job.rows_max, CELLS_MAX // max(1, columns))
            table, is_complete = result.read_up_to(max_rows=rows_max, max_bytes=job.bytes_max)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            _send_all(send, sink.getvalue())
        read = result.statistics
        send(DONE, msgspec.json.encode(Outcome(is_complete, read.rows_read, read.bytes_read)))


def _send_all(send: Send, content: Any) -> None:
    view = memoryview(content)
    for start in range(0, len(view), FRAME_BYTES_MAX):
        send(DATA, view[start : start + FRAME_BYTES_MAX])


def failure_of(error: BaseException) -> Failure:
    """Return the content of the frame FAILED for the error that ended a statement."""
    if isinstance(error, SparklogError):
        return Failure(error.code, str(error))
    if isinstance(error, MemoryError):
        return Failure(InvalidQueryError.code, f"the statement needs more memory than {DATA_BYTES_MAX // MIB} MiB")
    _log.error("a statement failed", exc_info=error)
    return Failure(UnknownServerError.code, f"{type(error).__name__}: {error}")


def limit(cpu_s: int) -> None:
    """Limit the core files, processor time and memory of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))


def main() -> None:
    """Run the forker: import the libraries, then fork a process for each job until the console ends.

    The program's first argument is the descriptor of the control socket. An order `FORK` also carries the job's socket.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # the only other thread belongs to an unused allocator, so that a fork is safe
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*")
    os.nice(_NICE)
    control = socket.socket(fileno=int(sys.argv[1]))
    ended, signalled = socket.socketpair()
    signalled.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signalled.fileno())
    _warm_up()
    pids: dict[int, int] = {}
    forker_pid = os.getpid()
    while True:
        readable, _, _ = select.select([control, ended], [], [])
        if ended in readable:
            ended.recv(FRAME_BYTES_MAX)
            for job, status in _exit_codes(pids):
                del pids[job]
                control.sendall(ENDED.pack(job, status))
        if control in readable:
            data, sockets, _, _ = socket.recv_fds(control, ORDER.size, 1)
            if len(data) < ORDER.size:
                break
            order, job = ORDER.unpack(data)
            if order == FORK:
                try:
                    pids[job] = os.fork()
                except OSError as e:  # too many processes
                    _log.warning("cannot start a process for a statement: %s", e)
                    control.sendall(ENDED.pack(job, os.EX_OSERR))
                if pids.get(job) == 0:
                    signal.set_wakeup_fd(-1)
                    control.close()
                    _run_job(socket.socket(fileno=sockets[0]), forker_pid)
                os.close(sockets[0])
            elif job in pids:
                os.kill(pids[job], signal.SIGKILL)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)


def _exit_codes(pids: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the number and exit code of each job that has ended."""
    waited = [(job, os.waitpid(pid, os.WNOHANG)) for job, pid in pids.items()]
    return [(job, os.waitstatus_to_exitcode(status)) for job, (pid, status) in waited if pid]


def _run_job(connection: socket.socket, forker_pid: int) -> NoReturn:
    """Receive a job, run it, and end the process."""
    _end_with(forker_pid)
    try:
        with connection.makefile("rb") as incoming:
            _, length = frame_head(incoming.read(HEAD_BYTES))
            job: Job = pickle.loads(incoming.read(length))
        limit(job.cpu_s)

        def send(kind: bytes, content: Any) -> None:
            connection.sendall(frame(kind, content))

        try:
            run(job, send)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as e:  # noqa: BLE001 - sent to the console
            send(FAILED, msgspec.json.encode(failure_of(e)))
    except OSError:  # the console has closed the socket
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the process would continue in the forker's loop
        _log.exception("a statement's process failed")
        os._exit(1)
    os._exit(0)  # does not wait for threads of the clients and of DuckDB


def _end_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends, if the kernel supports this. Ends the process if the
    parent has ended before: `parent_pid` was read before the fork, because an orphan sees only its new parent."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _warm_up() -> None:
    """Import the libraries and start DuckDB once, so that no statement waits for them."""
    import_module("sparklog.console.files")
    import_module("sparklog.query.session")
    connection = import_module("sparklog.query.connection")
    with suppress(InvalidConfigError):  # duckdb is missing: each statement reports that
        connection.require_duckdb().connect(":memory:").sql("SELECT 1").to_arrow_table()
