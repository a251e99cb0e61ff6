"""A real broker process for the system tests, and requests to it without the client library."""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    HandshakeRequest,
    HandshakeResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from sparklog.protocol.topic_messages import CreateTopicRequest, CreateTopicResponse
from tests.support.raw_client import RawClient

PATIENCE_S = 60.0


def readable(descriptor: int | socket.socket, timeout_s: float) -> bool:
    """Return True if there is something to read within the time, for any number of the descriptor."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _limit(limits: Mapping[int, int]) -> None:
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


class BrokerProcess:
    """`python -m sparklog_broker` on a free port; `settings` are broker settings for its configuration file, `limits`
    of the process by `resource.RLIMIT_…`, `env` its environment (None: this one). `listen` None: `listeners` among the
    settings says where."""

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: str = "",
        listen: str | None = "127.0.0.1:0",
        work_dir: Path,
        wait_for_address: bool = True,
        limits: Mapping[int, int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        config = work_dir / "broker.toml"
        config.write_text(settings)
        self._stderr_path = work_dir / "stderr.txt"
        with self._stderr_path.open("ab") as stderr:
            command = [sys.executable, "-m", "sparklog_broker", "--config", str(config)]
            command += ["--listen", listen] if listen else []
            self.process = subprocess.Popen(
                [*command, "--data-dir", str(data_dir)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=env,
                preexec_fn=partial(_limit, limits) if limits else None,
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip() if wait_for_address else ""
        self.address = self.first_line.removeprefix("listening on ")

    @property
    def stderr(self) -> str:
        return self._stderr_path.read_text()

    @property
    def metrics_url(self) -> str:
        """Of a broker with `metrics.listen`, in its present life."""
        found = re.findall(r"metrics on (http://\S+/metrics)", self.stderr)
        assert found, self.stderr
        return str(found[-1])

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def connect(self) -> RawClient:
        return RawClient(self.host, self.port, PATIENCE_S)

    def socket(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), PATIENCE_S)

    def open_files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal; harmless when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()


def handshake(client: RawClient) -> HandshakeResponse:
    return client.request(Api.HANDSHAKE, HandshakeRequest("test", "0"), HandshakeResponse)


def create_topic(client: RawClient, name: str, partitions: int = 1, **more: Any) -> None:
    client.request(Api.CREATE_TOPIC, CreateTopicRequest(name, partitions, **more), CreateTopicResponse)


def produce(client: RawClient, pieces: Sequence[tuple[str, int, bytes]], acks: int = -1) -> list[ProduceResult]:
    """Results of one request with batches for several partitions."""
    parts = [ProducePartition(topic, partition, len(data)) for topic, partition, data in pieces]
    request = ProduceRequest(acks, 10_000, parts)
    return client.request(Api.PRODUCE, request, ProduceResponse, b"".join(p[2] for p in pieces)).results


def fetch(
    client: RawClient, topic: str, offset: int, *, partition: int = 0, wait_ms: int = 0, max_bytes: int = 1 << 20
) -> tuple[FetchResult, bytes]:
    """Result and data of one partition."""
    wanted = FetchPartition(topic, partition, offset, max_bytes)
    client.send(Api.FETCH, FetchRequest(wait_ms, 1, max_bytes, 0, [wanted]))
    response, payload = client.receive(Api.FETCH, FetchResponse)
    assert response.results[0].length_bytes == len(payload)
    return response.results[0], bytes(payload)


def end_offset(client: RawClient, topic: str, partition: int = 0, *, timestamp_ms: int = -1) -> int:
    """Return the log's end, or the answer of LIST_OFFSETS for another timestamp (-2: its start)."""
    request = ListOffsetsRequest([ListOffsetsPartition(topic, partition, timestamp_ms)])
    result = client.request(Api.LIST_OFFSETS, request, ListOffsetsResponse).results[0]
    assert result.error_code == 0, result.message
    return result.offset
