"""Three broker processes and a ZooKeeper, and requests to them without the client library's routing."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection
from sparklog.errors import error_from_code
from sparklog.format.batch import decode_batch, iterate_batches
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from sparklog.protocol.topic_messages import PartitionState
from tests.support.logs import batch
from tests.support.ports import free_port
from tests.system.broker_process import BrokerProcess

PATIENCE_S = 120.0
"""Patience for a busy machine: a wait for a session's end, or for a start, is a wait for processes."""
SESSION_MS = 6_000
"""Long enough for a busy machine, which must not lose a broker that runs."""
SETTINGS = f"""
zookeeper.session.timeout.ms = {SESSION_MS}
replica.lag.time.max.ms = 10_000
replica.fetch.backoff.ms = 100
"""
ACKS_ALL = -1


class ClusterProcesses:
    """Brokers 1, 2 and 3; each keeps its port and its directory over `kill` and `start`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[int, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: lines for one broker's configuration; `env`: the environment of brokers that start from now on
        (None: this process's)."""
        self._directory = directory
        self._settings = dict(settings or {})
        self.env = env
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self.zookeeper.start()
        self.ports = {i: free_port() for i in (1, 2, 3)}
        self.processes: dict[int, BrokerProcess] = {}
        for broker in self.ports:
            self.start(broker)

    def launch(self, broker: int, port: int, name: str, *, wait: bool = True) -> BrokerProcess:
        work_dir = self._directory / name
        work_dir.mkdir(exist_ok=True)
        settings = f'broker.id = {broker}\nzookeeper.connect = "{self.zookeeper.hosts}/sparklog"\n{SETTINGS}'
        settings += f"\n{self._settings.get(broker, '')}"
        return BrokerProcess(
            work_dir / "data",
            settings=settings,
            listen=f"127.0.0.1:{port}",
            work_dir=work_dir,
            wait_for_address=wait,
            env=self.env,
        )

    def start(self, broker: int) -> None:
        self.processes[broker] = self.launch(broker, self.ports[broker], f"broker-{broker}")

    def configure(self, broker: int, settings: str) -> None:
        """Lines in the place of those of the constructor's, from its next start on."""
        self._settings[broker] = settings

    def kill(self, broker: int) -> None:
        process = self.processes[broker].process
        process.kill()
        process.wait()
        _forget(process)

    def stop(self, broker: int) -> int:
        process = self.processes[broker].process
        process.terminate()
        status = process.wait(PATIENCE_S)
        _forget(process)
        return status

    def close(self) -> None:
        for broker in self.processes:
            self.kill(broker)
        self.zookeeper.kill()

    # --- requests

    def connect(self, broker: int) -> Connection:
        return Connection(Endpoint("127.0.0.1", self.ports[broker]), timeout_ms=60_000)

    def metadata(self, broker: int, topic: str) -> t.MetadataResponse:
        with closing(self.connect(broker)) as connection:
            answer, _ = connection.request(Api.METADATA, t.MetadataRequest([topic]), t.MetadataResponse)
        return answer

    def partitions(self, broker: int, topic: str) -> list[PartitionState]:
        return self.metadata(broker, topic).topics[0].partitions

    def create(self, broker: int, topic: str, partitions: int, **configs: int) -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        request = t.CreateTopicRequest(topic, partitions, configs={"retention.ms": -1, **settings})
        with closing(self.connect(broker)) as connection:
            connection.request(Api.CREATE_TOPIC, request, t.CreateTopicResponse)

    def produce(self, broker: int, topic: str, partition: int, values: Sequence[bytes], acks: int = ACKS_ALL) -> int:
        """The base offset. Raises the partition's error."""
        payload = bytes(batch(range(len(values)), values=values))
        request = ProduceRequest(acks, 10_000, [ProducePartition(topic, partition, len(payload))])
        with closing(self.connect(broker)) as connection:
            answer, _ = connection.request(Api.PRODUCE, request, ProduceResponse, [payload])
        (result,) = answer.results
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
        return result.base_offset

    def read(self, broker: int, topic: str, partition: int) -> list[bytes]:
        """All committed values, from their leader. Raises the partition's error."""
        found: list[bytes] = []
        with closing(self.connect(broker)) as connection:
            while True:
                request = FetchRequest(0, 0, 1 << 20, 0, [FetchPartition(topic, partition, len(found), 1 << 20)])
                answer, payload = connection.request(Api.FETCH, request, FetchResponse)
                (result,) = answer.results
                if result.error_code:
                    raise error_from_code(result.error_code, result.message)
                if not result.length_bytes:
                    return found
                data = memoryview(payload)
                for position, header in iterate_batches(data):
                    rows = decode_batch(data[position : position + header.size_bytes], ENVELOPE_SCHEMA)
                    found += rows.column("value").to_pylist()

    def leader_of(self, topic: str, partition: int, *, asked: int) -> int:
        return self.partitions(asked, topic)[partition].leader

    def in_sync(self, topic: str, brokers: int, *, asked: int) -> bool:
        """Return True if all partitions have this number of in-sync replicas, as their leaders say."""
        states = self.partitions(asked, topic)
        for state in states:
            told = self.partitions(state.leader, topic) if state.leader >= 0 else []  # none: it has not heard of it yet
            if state.partition >= len(told) or len(told[state.partition].isr) != brokers:
                return False
        return bool(states)


def _forget(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()
