"""Several log directories under a real broker process: one disk fails, the others serve on, the last one ends it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import StorageError
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import LocateSegmentsRequest, LocateSegmentsResponse
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from tests.support.raw_client import RawClient, envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, fetch, produce

BATCH = envelope_batch(10, 20)


class Disks:
    """A broker with the log directories a and b, and the topic t with four partitions: 0 and 2 in a, 1 and 3 in b."""

    def __init__(self, root: Path) -> None:
        self.a, self.b, self.root = root / "a", root / "b", root
        self.broker: BrokerProcess | None = None
        self.started = 0

    def start(self, settings: str = "") -> BrokerProcess:
        self.started += 1
        work = self.root / f"broker{self.started}"
        work.mkdir()
        settings = f'log.dirs = "{self.a},{self.b}"\n{settings}'
        self.broker = BrokerProcess(self.root / "data", settings=settings, work_dir=work)
        return self.broker

    def fill(self, client: RawClient) -> None:
        create_topic(client, "t", 4)
        assert [r.error_code for r in produce(client, [("t", p, BATCH) for p in range(4)])] == [0] * 4


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    if made.broker is not None:
        made.broker.stop(signal.SIGKILL)


def error_codes(client: RawClient) -> list[int]:
    """Return the metadata's error codes of t's partitions."""
    answer = client.request(Api.METADATA, MetadataRequest(["t"]), MetadataResponse)
    return [p.error_code for p in answer.topics[0].partitions]


B_OFFLINE = [0, StorageError.code, 0, StorageError.code]


def check_only_b_is_offline(client: RawClient) -> None:
    until(lambda: error_codes(client) == B_OFFLINE, "the partitions of b are offline")
    results = produce(client, [("t", p, BATCH) for p in range(4)])
    assert [r.error_code for r in results] == B_OFFLINE
    assert "log directory" in results[1].message
    for partition in range(4):
        result, data = fetch(client, "t", 0, partition=partition)
        assert result.error_code == B_OFFLINE[partition]
        assert bool(data) == (partition in (0, 2))


def test_partitions_are_spread_and_located(disks: Disks) -> None:
    broker = disks.start()
    with broker.connect() as client:
        disks.fill(client)
        for partition in range(4):
            directory = disks.a if partition % 2 == 0 else disks.b
            request = LocateSegmentsRequest("t", partition, 0, 10)
            located = client.request(Api.LOCATE_SEGMENTS, request, LocateSegmentsResponse)
            assert located.data_dir == str(directory)
            assert located.data_dir_id == json.loads((directory / "meta.json").read_bytes())["data_dir_id"]
            assert [Path(r.path).parent for r in located.ranges] == [directory / f"t-{partition}"]
    assert broker.stop() == 0
    broker = disks.start()
    with broker.connect() as client:
        assert all(fetch(client, "t", 0, partition=p)[1] for p in range(4))
    assert broker.stop() == 0


def test_a_directory_that_is_removed_and_then_the_last_one(disks: Disks) -> None:
    broker = disks.start()
    with broker.connect() as client:
        disks.fill(client)
        disks.b.rename(disks.root / "gone-b")  # at once, as an unplugged disk
        check_only_b_is_offline(client)
        create_topic(client, "new", 2)
        assert [r.error_code for r in produce(client, [("new", p, BATCH) for p in range(2)])] == [0, 0]
        assert sorted(p.name for p in disks.a.iterdir() if p.is_dir()) == ["new-0", "new-1", "t-0", "t-2"]
    disks.a.rename(disks.root / "gone-a")
    assert broker.wait() == 1
    last = broker.stderr.splitlines()[-1]
    assert last.startswith("error: all log directories have failed: ")
    assert str(disks.a) in last
    assert "Traceback" not in broker.stderr
    assert not disks.b.exists(), "it is not made again"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_a_disk_that_answers_with_eio(disks: Disks, call: str) -> None:
    broker = disks.start("log.flush.interval.ms = 100\n[topic]\nsegment.bytes = 4096")
    with broker.connect() as client:
        disks.fill(client)
        segment = next((disks.b / "t-1").glob("*.arrow"))
        command = ["strace", "-f", "-p", str(broker.process.pid), "-P", str(segment), "-e", f"inject={call}:error=EIO"]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        try:
            first = tracer.stderr.readline()
            if "attached" not in first:
                pytest.skip(f"strace cannot attach: {first}")
            # the segment is written to, then rolled, so that it is fsynced
            until(
                lambda: any(r.error_code for r in produce(client, [("t", 1, BATCH)])),
                "an error of the disk reaches the producer",
            )
            check_only_b_is_offline(client)
            assert "cannot write" in broker.stderr if call == "pwrite64" else "cannot fsync" in broker.stderr
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.stderr.read()
            tracer.wait()
            tracer.stderr.close()
    assert broker.stop() == 1
