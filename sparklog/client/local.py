"""A broker daemon of its own for notebooks, demos and tests: what `start_local` starts."""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.cluster import forget
from sparklog.errors import BrokerNotAvailableError

__all__ = ["LocalBroker", "start_broker"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOG_LINES_KEPT = 200
KEEP_FOR_EVER: dict[str, object] = {"topic.retention.ms": -1}
_TOPIC = "topic."
_READY = "listening on "

_live: set[LocalBroker] = set()
"""Not weakly: `bootstrap = start_local().bootstrap_servers` runs until this process ends, too."""


class LocalBroker:
    """A running broker process. `bootstrap_servers` is its address, `data_dir` its directory, `pid` its process."""

    def __init__(
        self, process: subprocess.Popen[bytes], data_dir: Path, temporary: bool, address: str, log: _Log
    ) -> None:
        self._process = process
        self._temporary = temporary
        self._log = log
        self._owner = os.getpid()
        self.data_dir = data_dir
        self.bootstrap_servers = address
        _live.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines the broker logged."""
        return self._log.text()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stops the broker cleanly (after `timeout_s` with SIGKILL), removes a temporary data directory; again is fine.
        Returns the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._reap()

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would; the data directory stays, also a temporary one."""
        self._process.kill()
        self._temporary = False
        self._reap()

    def __enter__(self) -> LocalBroker:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<LocalBroker {self.bootstrap_servers} {self.data_dir} {state}>"

    def _reap(self) -> int:
        code = self._process.wait()
        self._log.close()
        forget(self.bootstrap_servers)
        _live.discard(self)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        return code


class _Log:
    """Reads the broker's stderr in a thread so that it never blocks; keeps the last lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LOG_LINES_KEPT)
        self._stream = process.stderr
        self._thread = threading.Thread(target=self._read, name="sparklog-local-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._stream:
                self._lines.append(line.decode(errors="replace").rstrip())

    def text(self) -> str:
        return "\n".join(list(self._lines))

    def close(self) -> None:
        self._thread.join(5.0)
        if self._stream is not None:
            self._stream.close()


def start_broker(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str | None = "127.0.0.1:0",
    *,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalBroker:
    """See `start_local`. `listen` None: `listeners` among the settings says where; the first one is the address."""
    temporary = data_dir is None
    directory = Path(tempfile.mkdtemp(prefix="sparklog-")) if data_dir is None else Path(data_dir).absolute()
    given = KEEP_FOR_EVER | dict(settings or {})
    config = _write_config(given)
    command = [sys.executable, "-m", "sparklog_broker", "--config", str(config)]
    command += ["--data-dir", str(directory), *(["--listen", listen] if listen is not None else [])]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_die_with_parent(),
        start_new_session=True,  # Ctrl-C is for the program, which then stops the broker
    )
    log = _Log(process)
    try:
        address = _wait_until_ready(process, timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        config.unlink(missing_ok=True)
        if process.stdout is not None:
            process.stdout.close()
    if address is None:
        process.kill()
        code = process.wait()
        log.close()
        if temporary:
            shutil.rmtree(directory, ignore_errors=True)
        raise BrokerNotAvailableError(f"the broker did not start (exit code {code}): {log.text() or 'it said nothing'}")
    forget(address)  # another broker may have used the port before
    return LocalBroker(process, directory, temporary, address, log)


def _write_config(settings: Mapping[str, object]) -> Path:
    """A configuration file with `settings`; the broker says what is wrong with them."""
    broker = {name: value for name, value in settings.items() if not name.startswith(_TOPIC)}
    topic = {name.removeprefix(_TOPIC): value for name, value in settings.items() if name.startswith(_TOPIC)}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in broker.items()]
    lines += ["[topic]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in topic.items())]
    with tempfile.NamedTemporaryFile("w", prefix="sparklog-", suffix=".toml", delete=False, encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return Path(file.name)


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read within the time; `select.select` would stop at 1,024 open files."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _wait_until_ready(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """The address in the broker's `listening on` line; None if it ended or said nothing in time."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    said = b""
    while b"\n" not in said:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not _readable(process.stdout.fileno(), remaining):
            return None
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            return None
        said += chunk
    line = said.decode(errors="replace").splitlines()[0]
    if not line.startswith(_READY):
        return None
    return str(parse_bootstrap(line.removeprefix(_READY).strip())[0])


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before it becomes the broker: the kernel ends it when this process is gone. Linux only, and
    only for the main thread, because what the kernel watches is the thread that starts the child."""
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    parent = os.getpid()
    pr_set_pdeathsig = 1

    def in_child() -> None:
        prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def _stop_all() -> None:
    for broker in list(_live):
        if broker._owner == os.getpid():
            broker.stop()


atexit.register(_stop_all)
