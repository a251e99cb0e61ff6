"""A real broker with listeners of every kind, its certificates, and clients of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from sparklog.security.authority import Authority, Identity
from tests.system.broker_process import BrokerProcess

LISTENERS = ("LOCAL", "TLS", "MUTUAL", "SASL", "BOTH")
PROTOCOLS = "LOCAL:PLAINTEXT,TLS:SSL,MUTUAL:SSL,SASL:SASL_PLAINTEXT,BOTH:SASL_SSL"
PASSWORD = "correct-horse-battery"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def write_identity(directory: Path, name: str, identity: Identity) -> dict[str, str]:
    """The settings that name its files."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    certificate.write_text(identity.certificate)
    key.write_text(identity.key.reveal())
    return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


class SecureBroker:
    """`more`: further lines of the broker's configuration. `hosts`: of its certificate, `days` its validity."""

    def __init__(
        self, directory: Path, *, more: str = "", hosts: tuple[str, ...] = ("localhost", "127.0.0.1"), days: float = 1
    ) -> None:
        self.directory = directory
        self.authority = Authority("test CA", now())
        self.ca = directory / "ca.pem"
        self.ca.write_text(self.authority.identity.certificate)
        self.own = write_identity(directory, "broker", self.authority.issue("broker", hosts, now(), days, broker=True))
        settings = "\n".join(
            [
                f'listeners = "{",".join(f"{name}://127.0.0.1:0" for name in LISTENERS)}"',
                f'listener.security.protocol.map = "{PROTOCOLS}"',
                *(f'{name} = "{value}"' for name, value in self.own.items()),
                f'ssl.ca.location = "{self.ca}"',
                'listener.name.mutual.ssl.client.auth = "required"',
                "ssl.reload.interval.ms = 100",
                more,
            ]
        )
        self.process = BrokerProcess(directory / "data", settings=settings, listen=None, work_dir=directory)
        self.addresses = {"LOCAL": self.process.address}
        stdout = self.process.process.stdout
        assert stdout is not None
        for _ in LISTENERS[1:]:
            name, _, address = stdout.readline().strip().removeprefix("listening on ").partition("://")
            self.addresses[name] = address

    def client(self, name: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Settings of a client of the SASL listeners."""
        return {
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
        }

    def tls(self, **more: str) -> dict[str, str]:
        return {"ssl.ca.location": str(self.ca)} | more

    def stop(self) -> int:
        return self.process.stop()
