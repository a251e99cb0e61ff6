"""A broker that `sparklog broker --secure-setup` has made: TLS, SCRAM, ACLs, one super user."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import sparklog
from sparklog.client.net.cluster import forget
from sparklog.security.secrets import Secret
from tests.support.ports import free_port
from tests.system.broker_process import readable

START_TIMEOUT_S = 60.0


class SecureBroker(AbstractContextManager["SecureBroker"]):
    """A secure broker in `directory`: `secure/` (the files of the setup), `data/`, and `broker.log`. `security`: the
    super user's client settings, as the path of a file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = directory / "broker.log"
        self.security = str(directory / "secure" / "client.properties")
        options = ["--listen", self.address, "--data-dir", str(directory / "data")]
        setup = [sys.executable, "-m", "sparklog.cli", "broker", "--secure-setup", str(directory / "secure"), *options]
        self.said = subprocess.run(setup, check=True, capture_output=True, text=True, timeout=60).stdout
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "sparklog_broker", "--config", str(self.directory / "secure" / "broker.toml")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
        assert self._process.stdout is not None
        assert readable(self._process.stdout.fileno(), START_TIMEOUT_S), self.log.read_text()
        line = self._process.stdout.readline().decode()
        assert line.startswith("listening on "), line + self.log.read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        forget(self.address)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def admin(self) -> sparklog.Admin:
        """The super user's."""
        return sparklog.Admin(self.address, security=self.security)

    def add_user(self, name: str, password: str) -> None:
        with self.admin() as admin:
            admin.set_user_password(name, Secret(password), ["SCRAM-SHA-512"])

    def user_security(self, name: str, password: str) -> dict[str, str]:
        """A user's client settings."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{module} required username="{name}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "secure" / "ca.pem"),
        }

    def spark_options(self, name: str, password: str) -> dict[str, str]:
        """The same as a Spark job has it."""
        options = {f"kafka.{key}": value for key, value in self.user_security(name, password).items()}
        return {"kafka.bootstrap.servers": self.address} | options
