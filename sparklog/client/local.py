"""The broker process that `start_local` starts for notebooks, demos and tests."""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib.util
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.cluster import forget
from sparklog.environment.files import absolute
from sparklog.environment.lifeline import Lifeline
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError

__all__ = ["LocalBroker", "start_broker"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOG_LINES_KEPT = 200
_LOG_READ_BYTES = 65_536
KAFKA: dict[str, object] = {"kafka.listeners": "PLAINTEXT://127.0.0.1:0"}
REGISTRY = "schema.registry.listeners"
KEEP_FOR_EVER: dict[str, object] = {"topic.retention.ms": -1}
_TOPIC = "topic."
_READY = "listening on "
_GATEWAY = "kafka."
"""Prefix of the gateway's addresses in a line that the broker prints."""
_REGISTRIES = ("http://", "https://")
_FAULTS = "faults://"
"""Prefix of the address for faults in such a line."""

_live: set[LocalBroker] = set()
"""The running brokers of this process, stopped at its exit: also the broker of an expression such as
`start_local().bootstrap_servers`, to whose LocalBroker nothing else refers."""


class LocalBroker:
    """A running broker process of this machine. It ends with the process that has started it.

    In a forked child the broker belongs to the parent: the child can use its address, but `stop` and `kill` do nothing.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        data_dir: Path,
        temporary: bool,
        address: str,
        log: _Log,
        lifeline: Lifeline,
        kafka_address: str = "",
        schema_registry_url: str = "",
        faults_address: str = "",
    ) -> None:
        """Take over a started process. Users call `start_local` instead.

        Args:
            process: The broker's process.
            data_dir: The broker's directory.
            temporary: True if `stop` removes the directory.
            address: The address that the broker listens on.
            log: The reader of the broker's stderr.
            lifeline: The pipe that the broker watches: the broker stops when this process has closed the pipe.
            kafka_address: The address of the broker's Kafka gateway; empty: there is none.
            schema_registry_url: The address of the schema registry; empty: there is none.
            faults_address: The address that takes orders for faults; empty: the broker runs without `--testing`.
        """
        self._process = process
        self._temporary = temporary
        self._log = log
        self._lifeline = lifeline
        self._owner = os.getpid()
        self.data_dir = data_dir
        """The broker's directory."""
        self.bootstrap_servers = address
        """Address of the broker as HOST:PORT."""
        self.kafka_bootstrap_servers = kafka_address
        """Address for Kafka's clients as HOST:PORT; empty without `kafka=True`."""
        self.schema_registry_url = schema_registry_url
        """URL of the schema registry; empty without `kafka=True` or `sparklog[schemas]`."""
        self.faults_address = faults_address
        """Address that takes a test's orders for faults as HOST:PORT; empty in brokers that no test kit has started."""
        _live.add(self)

    @property
    def pid(self) -> int:
        """Id of the broker's process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until the broker has ended; always True in a forked child, which cannot know."""
        return not self._is_own or self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines of the broker's log."""
        return self._log.text()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the broker cleanly and remove a temporary data directory. A second call does nothing more.

        Args:
            timeout_s: Time for the clean stop in seconds. After it the broker is ended with SIGKILL.

        Returns:
            The exit code; 0 in a forked child, where nothing is stopped.
        """
        if not self._is_own:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._reap()

    def kill(self) -> None:
        """End the process with SIGKILL, like a crash. The data directory stays, also a temporary one.

        The call does nothing in a forked child.
        """
        if not self._is_own:
            return
        self._process.kill()
        self._temporary = False
        self._reap()

    def __enter__(self) -> LocalBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<LocalBroker {self.bootstrap_servers} {self.data_dir} {state}>"

    @property
    def _is_own(self) -> bool:
        return self._owner == os.getpid()

    def _reap(self) -> int:
        code = self._process.wait()
        self._lifeline.cut()
        self._log.close()
        forget(self.bootstrap_servers)
        _live.discard(self)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        return code


class _Log:
    """Reads the broker's stderr in a thread, so that the broker never blocks on it, and keeps the last lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LOG_LINES_KEPT)
        assert process.stderr is not None
        self._descriptor = process.stderr.fileno()
        self._stream = process.stderr
        self._thread = threading.Thread(target=self._read, name="sparklog-local-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # Not through the stream: its lock, held by this thread, would stay held in a forked child.
        begun = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self._descriptor, _LOG_READ_BYTES):
                *lines, begun = (begun + chunk).split(b"\n")
                self._lines.extend(line.decode(errors="replace").rstrip() for line in lines)
        if begun:
            self._lines.append(begun.decode(errors="replace").rstrip())

    def text(self) -> str:
        return "\n".join(list(self._lines))

    def close(self) -> None:
        self._thread.join(5.0)
        if not self._thread.is_alive():  # else it still reads from the descriptor
            self._stream.close()


def kafka_settings() -> dict[str, object]:
    """Return the settings of a broker with a gateway, and with a schema registry if its libraries are installed."""
    has_registry = importlib.util.find_spec("h11") is not None
    return KAFKA | ({REGISTRY: "http://127.0.0.1:0"} if has_registry else {})


def start_broker(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str | None = "127.0.0.1:0",
    *,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    kafka: bool = False,
    testing: bool = False,
) -> LocalBroker:
    """Start a local broker; see `start_local`. With `listen` None the broker listens on the addresses in the setting
    `listeners`, and `bootstrap_servers` of the result is the first one. `testing`: True for a broker whose clock a test
    moves, and whose requests a test lets fail.
    """
    for name, parameter in (("listen", "listen"), ("data.dir", "data_dir")):
        if name in (settings or {}):
            raise InvalidConfigError(f"settings has {name!r}, which has a parameter of its own: use {parameter}=…")
    temporary = data_dir is None
    directory = Path(tempfile.mkdtemp(prefix="sparklog-")) if data_dir is None else absolute(Path(data_dir))
    values = KEEP_FOR_EVER | (kafka_settings() if kafka else {}) | dict(settings or {})
    config = _write_config(values)
    command = [sys.executable, "-m", "sparklog_broker", "--end-with-parent", "--config", str(config)]
    command += ["--temporary"] if temporary else []
    command += ["--testing", "--faults-listen", "127.0.0.1:0"] if testing else []
    command += ["--data-dir", str(directory), *(["--listen", listen] if listen is not None else [])]
    lifeline = Lifeline()
    try:
        process = subprocess.Popen(
            command,
            stdin=lifeline.read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the program, which then stops the broker
        )
    except BaseException:
        lifeline.cut()
        config.unlink(missing_ok=True)
        if temporary:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    lifeline.hand_over()
    log = _Log(process)
    try:
        addresses = _wait_until_ready(process, timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        lifeline.cut()
        log.close()
        if temporary:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        config.unlink(missing_ok=True)
        if process.stdout is not None:
            process.stdout.close()
    if addresses is None:
        ended = process.poll()
        process.kill()
        process.wait()
        lifeline.cut()
        log.close()
        if temporary:
            shutil.rmtree(directory, ignore_errors=True)
        why = f"within {timeout_s:g} s: raise timeout_s" if ended is None else f"(exit code {ended})"
        raise BrokerNotAvailableError(f"the broker did not start {why}: {log.text() or 'no output'}")
    address, *others = addresses
    forget(address)  # perhaps another broker has used the port before
    urls = [one.removeprefix(_GATEWAY) for one in others if one.startswith(_GATEWAY)]
    registries = (one for one in urls if one.startswith(_REGISTRIES))
    gateways = (one.partition("://")[2] for one in urls if not one.startswith(_REGISTRIES))
    faults = (one.removeprefix(_FAULTS) for one in others if one.startswith(_FAULTS))
    names = (next(each, "") for each in (gateways, registries, faults))
    return LocalBroker(process, directory, temporary, address, log, lifeline, *names)


def _write_config(settings: Mapping[str, object]) -> Path:
    """Write a configuration file with `settings`, unchecked: the broker reports errors in them."""
    broker = {name: value for name, value in settings.items() if not name.startswith(_TOPIC)}
    topic = {name.removeprefix(_TOPIC): value for name, value in settings.items() if name.startswith(_TOPIC)}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in broker.items()]
    lines += ["[topic]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in topic.items())]
    with tempfile.NamedTemporaryFile("w", prefix="sparklog-", suffix=".toml", delete=False, encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return Path(file.name)


def _readable(descriptor: int, timeout_s: float) -> bool:
    """True if bytes can be read within the time. `select.select` would fail for descriptors from 1,024 on."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _wait_until_ready(process: subprocess.Popen[bytes], timeout_s: float) -> list[str] | None:
    """Return the addresses in the broker's `listening on` lines: the broker's own, then those of its gateway. The
    broker writes all these lines in one piece. None: the broker ended, or wrote no line in time."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    said = b""
    while not said.endswith(b"\n"):
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not _readable(process.stdout.fileno(), remaining):
            return None
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            return None
        said += chunk
    lines = said.decode(errors="replace").splitlines()
    if not lines[0].startswith(_READY):
        return None
    own, *others = (line.removeprefix(_READY).strip() for line in lines)
    return [str(parse_bootstrap(own)[0]), *others]


def _stop_all() -> None:
    for broker in list(_live):
        broker.stop()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_live.clear)
