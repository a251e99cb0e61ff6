"""A ZooKeeper process of its own, from the jars that PySpark brings."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pyspark

JARS = Path(pyspark.__file__).parent / "jars"
NEEDED = ("zookeeper-", "slf4j-api", "netty-", "metrics-core", "snappy", "commons-io")
START_SECONDS = 60


def has_java() -> bool:
    return shutil.which("java") is not None


class ZooKeeperProcess:
    """Listens on a free port of loopback; keeps its data in `directory` over `kill` and `start`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "zoo.cfg").write_text(
            f"tickTime=200\ndataDir={directory / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nminSessionTimeout=400\nmaxSessionTimeout=60000\n4lw.commands.whitelist=ruok\n"
        )

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError with what it has written if it does not."""
        jars = [str(jar) for jar in sorted(JARS.glob("*.jar")) if jar.name.startswith(NEEDED)]
        command = [
            "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
            "-cp", ":".join(jars), "org.apache.zookeeper.server.ZooKeeperServerMain", str(self._directory / "zoo.cfg"),
        ]  # fmt: skip
        with (self._directory / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._directory / "output.txt").read_text(errors="replace")
                self.kill()
                raise RuntimeError(f"ZooKeeper does not start: {text[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
