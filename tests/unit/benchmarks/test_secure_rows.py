"""The rows with security: certificates and the settings of both brokers. No test measures a time."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from sparklog.security.tls import server_context
from tests.benchmarks import kafka, secure_servers
from tests.benchmarks.context import Context
from tests.benchmarks.processes import MeasurementError


def test_the_certificate_is_good_for_the_measured_address(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path / "new")
    server = server_context(secure_servers.sparklog_settings(made, {}))
    client = ssl.create_default_context(cafile=str(made.authority))
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ours = server.wrap_bio(pipes[0], pipes[1], server_side=True)
    theirs = client.wrap_bio(pipes[1], pipes[0], server_hostname="127.0.0.1")
    waiting = [theirs, ours]
    for _ in range(10):
        for side in list(waiting):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    assert not waiting
    assert theirs.version() == "TLSv1.3"


def test_kafka_gets_the_same_certificate_and_mechanism(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path)
    theirs = secure_servers.kafka_settings(made)
    ours = secure_servers.sparklog_settings(made, {"PLAINTEXT": 1, "SSL": 2})
    assert ours["listeners"] == "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
    for name in ("ssl.keystore.location", "sasl.enabled.mechanisms", "super.users"):
        assert theirs[name] == ours[name]
    assert f"ssl.keystore.location={made.broker}" in kafka.properties(theirs).splitlines()


def test_a_kafka_that_does_not_start_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class NeverStarts:
        def __init__(self, *_: object, **__: object) -> None: ...

        def start(self) -> float:
            raise MeasurementError("no")

        def stop(self, *, kill: bool) -> None:
            ended.append("killed" if kill else "stopped")

    monkeypatch.setattr(secure_servers, "KafkaServer", NeverStarts)
    monkeypatch.setattr(Context, "installation", None)
    with Context(0.01, tmp_path) as context:
        for _ in range(2):
            with pytest.raises(MeasurementError):
                context.kafka(secure_servers.TLS)
        assert ended == ["killed", "killed"]
