"""The log tools beside a real broker: at work, killed, with a damaged partition, and repaired."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import LogCorruptError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from tests.support.cli import Result, run_here
from tests.support.raw_client import envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, fetch, produce

BATCH = envelope_batch(20, 100)
SETTINGS = "log.flush.interval.ms = 100\n[topic]\nsegment.bytes = 16384"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Brokers on the same directory, one after the other."""
    started: list[BrokerProcess] = []
    yield started
    for broker in started:
        broker.stop(signal.SIGKILL)


def start(brokers: list[BrokerProcess], tmp_path: Path, settings: str = SETTINGS) -> BrokerProcess:
    work = tmp_path / f"broker{len(brokers)}"
    work.mkdir()
    brokers.append(BrokerProcess(tmp_path / "data", settings=settings, work_dir=work))
    return brokers[-1]


def tool(*arguments: object, code: int = 0) -> Result:
    result = run_here("log", *arguments)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.mark.nightly
def test_verify_beside_a_broker_under_load(brokers: list[BrokerProcess], tmp_path: Path) -> None:
    broker = start(brokers, tmp_path)
    with broker.connect() as client:
        create_topic(client, "t", 2)
    stop = threading.Event()
    appended = [0]

    def load() -> None:
        with broker.connect() as client:
            while not stop.is_set():
                results = produce(client, [("t", 0, BATCH), ("t", 1, BATCH)])
                appended[0] += sum(20 for r in results if not r.error_code)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: appended[0])
        reports = [json.loads(tool("verify", broker.data_dir, "--format", "json").stdout) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert [r["damage"] for r in reports] == [[], [], []]
    assert 0 < reports[0]["records"] <= reports[2]["records"]
    broker.stop(signal.SIGKILL)
    report = json.loads(tool("verify", broker.data_dir, "--format", "json").stdout)
    assert (report["damage"], report["records"]) == ([], appended[0])


def test_a_damaged_partition_is_detected_repaired_and_served_again(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    # without a flush, whose recovery point would keep the damaged batch out of the scan
    broker = start(brokers, tmp_path, SETTINGS.replace("100", "3600000", 1))
    with broker.connect() as client:
        create_topic(client, "t", 2)
        for _ in range(20):
            produce(client, [("t", 0, BATCH), ("t", 1, BATCH)])
    broker.stop(signal.SIGKILL)
    path = sorted((broker.data_dir / "t-0").glob("*.arrow"))[-1]
    data = bytearray(path.read_bytes())
    data[1500] ^= 1  # the segment that is scanned after a kill
    path.write_bytes(data)

    broker = start(brokers, tmp_path)
    with broker.connect() as client:
        answer = client.request(Api.METADATA, MetadataRequest(["t"]), MetadataResponse)
        assert [p.error_code for p in answer.topics[0].partitions] == [LogCorruptError.code, 0]
        found, _ = fetch(client, "t", 0)
        assert f"sparklog log repair {broker.data_dir}/t-0" in found.message
        assert str(path) in tool("verify", broker.data_dir, code=1).stdout
        assert "is in use by a broker" in tool("repair", broker.data_dir / "t-0", "--yes", code=1).stderr
        assert produce(client, [("t", 1, BATCH)])[0].error_code == 0
    broker.stop()

    assert "would keep" in tool("repair", broker.data_dir / "t-0", code=1).stdout
    tool("repair", broker.data_dir / "t-0", "--yes")
    tool("verify", broker.data_dir)
    broker = start(brokers, tmp_path)
    with broker.connect() as client:
        result, data_read = fetch(client, "t", 0)
        assert (result.error_code, bool(data_read)) == (0, True)
        assert produce(client, [("t", 0, BATCH)])[0].base_offset == 400, "no offset is given twice"
    assert broker.stop() == 0
    tool("verify", broker.data_dir)
