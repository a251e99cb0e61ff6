"""A ZooKeeper process for development and tests, started from PySpark's jars."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sparklog.environment.lifeline import Lifeline
from sparklog.environment.ports import free_ports
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError

NEEDED = ("zookeeper-", "slf4j-api", "netty-", "metrics-core", "snappy", "commons-io")
START_TIMEOUT_S = 60.0
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
OUTPUT_CHARS = 2_000


def has_java() -> bool:
    """Return True if a `java` command is on the path."""
    return shutil.which("java") is not None


def _jars() -> list[str]:
    """Return the jars to start ZooKeeper with. Raises InvalidConfigError with the package to install."""
    if not has_java():
        raise InvalidConfigError("ZooKeeper needs Java: install Java 17, or name a running ZooKeeper")
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidConfigError("ZooKeeper is started from PySpark's jars: pip install 'sparklog[spark]'")
    directory = Path(spec.origin).parent / "jars"
    jars = [str(jar) for jar in sorted(directory.glob("*.jar")) if jar.name.startswith(NEEDED)]
    if not any(Path(jar).name.startswith(NEEDED[0]) for jar in jars):
        raise InvalidConfigError(
            f"no ZooKeeper in {directory}: this PySpark does not include ZooKeeper; install PySpark 4"
        )
    return jars


class ZooKeeperProcess:
    """A ZooKeeper process. It keeps its port and its data over `kill` and `start`. It ends with this process, or up to
    ORPHANED_S later if `temporary` is set."""

    def __init__(
        self,
        directory: Path,
        *,
        tick_ms: int = 200,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Write the configuration, and start nothing.

        Args:
            directory: Directory for configuration, data and output.
            tick_ms: ZooKeeper's tick in ms; sessions last 2 to 300 ticks.
            host: An address of this machine.
            port: Port to listen on; 0: any free one.
            settings: Further settings of zoo.cfg. None: none.

        Raises:
            InvalidConfigError: Java or PySpark is missing.
        """
        self._jars = _jars()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._host = host
        self.port = port or free_ports(1, host)[0]
        """Port that ZooKeeper listens on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._owner = os.getpid()
        self.temporary: Path | None = None
        """Temporary directory with the directories of ZooKeeper and the brokers. If this process ends without removing
        the directory, it is removed when ZooKeeper ends. None: nothing is removed."""
        (directory / "zoo.cfg").write_text(
            f"tickTime={tick_ms}\ndataDir={directory / 'data'}\nclientPort={self.port}\nclientPortAddress={host}\n"
            f"admin.enableServer=false\nminSessionTimeout={2 * tick_ms}\nmaxSessionTimeout={300 * tick_ms}\n"
            f"4lw.commands.whitelist=ruok\n" + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        )

    @property
    def hosts(self) -> str:
        """Address for clients as HOST:PORT."""
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        """Id of the process; -1 if ZooKeeper does not run."""
        return -1 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start ZooKeeper and wait until it answers.

        Raises:
            BrokerNotAvailableError: ZooKeeper has ended, or does not answer in time. The message has its output.
        """
        command = [
            "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
            "-cp", ":".join(self._jars), MAIN_CLASS, str(self._directory / "zoo.cfg"),
        ]  # fmt: skip
        # Java does not notice that its parent has ended, so the process between them (_GUARD) ends Java then
        with (self._directory / "output.txt").open("wb") as output:
            self._lifeline = Lifeline()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _GUARD, str(self.temporary or ""), *command],
                    stdin=self._lifeline.read_end,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except BaseException:
                self._lifeline.cut()
                raise
            self._lifeline.hand_over()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._directory / "output.txt").read_text(errors="replace")
                self.kill()
                raise BrokerNotAvailableError(f"ZooKeeper does not start: {text[-OUTPUT_CHARS:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process with SIGKILL, like a crash. A second call and a call in a forked child do nothing."""
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                self._signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None
        if self._lifeline is not None:
            self._lifeline.cut()

    def pause(self) -> None:
        """Suspend the process with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._host, self.port), 1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


ORPHANED_S = 30
"""Longest time in s for which ZooKeeper outlives its parent process, so that the brokers in `temporary`, which stop at
the same time, can leave the cluster cleanly. ZooKeeper ends with the last of them, and at once without `temporary`."""
_GUARD = f"""
import fcntl, pathlib, select, shutil, subprocess, sys, time

temporary = sys.argv[1]
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
lifeline = select.poll()
lifeline.register(0, select.POLLIN)

def has_broker():
    for path in pathlib.Path(temporary).glob("*/.lock") if temporary else ():
        try:
            with path.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
    return False

while child.poll() is None and not lifeline.poll(200):
    pass
if lifeline.poll(0):
    until = time.monotonic() + {ORPHANED_S}
    while has_broker() and time.monotonic() < until:
        time.sleep(0.2)
    child.kill()
    child.wait()
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
sys.exit(child.returncode)
"""
