"""Faults of the machine under a real broker's files: descriptors run out, directories are exchanged."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import StorageUnavailableError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from tests.support.raw_client import RawClient, envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, end_offset, fetch, produce

BATCH = envelope_batch(1, 20)
PARTITIONS = 60
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers on `tmp_path/data`; those that still run are killed in the end."""
    running: list[BrokerProcess] = []

    def _start(settings: str = "", **more: Any) -> BrokerProcess:
        work = tmp_path / f"broker{len(running)}"
        work.mkdir()
        running.append(BrokerProcess(tmp_path / "data", settings=settings, work_dir=work, **more))
        return running[-1]

    yield _start
    for broker in running:
        broker.stop(signal.SIGKILL)


def write_errors(client: RawClient) -> dict[int, str]:
    answer = client.request(Api.METADATA, MetadataRequest(["t"]), MetadataResponse)
    return {p.partition: p.write_error for p in answer.topics[0].partitions if p.write_error}


def test_descriptors_run_out_for_a_moment(start: Start, tmp_path: Path) -> None:
    settings = 'log.open.files.max = 16\n"log.flush.interval.ms" = 100\n'
    broker = start(settings)
    pid = broker.process.pid
    with broker.connect() as client:
        create_topic(client, "t", PARTITIONS, configs={"segment.bytes": 4096})
        everywhere = [("t", p, BATCH) for p in range(PARTITIONS)]
        stored = dict.fromkeys(range(PARTITIONS), 0)

        def send() -> list[int]:
            codes = []
            for p, result in enumerate(produce(client, everywhere)):
                stored[p] += result.error_code == 0
                codes.append(result.error_code)
            return codes

        for _ in range(4):
            assert send() == [0] * PARTITIONS
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (broker.open_files() - 8, hard))
        failed: set[int] = set()
        for _ in range(10):
            codes = send()
            assert set(codes) <= {0, StorageUnavailableError.code}
            failed = {p for p, code in enumerate(codes) if code}
            assert set(write_errors(client)) == failed
        assert failed
        assert all("Too many open files" in error for error in write_errors(client).values())
        until(lambda: "cannot be flushed now" in broker.stderr, "a background flush under the shortage")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        until(lambda: send() == [0] * PARTITIONS, "all partitions take records again")
        assert write_errors(client) == {}
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    broker = start(settings)
    with broker.connect() as client:
        assert {p: end_offset(client, "t", p) for p in range(PARTITIONS)} == stored
        assert all(fetch(client, "t", 0, partition=p)[0].error_code == 0 for p in range(PARTITIONS))
    assert broker.stop() == 0


def _copied_back(data: Path) -> None:
    data.rename(data.with_name("old"))
    shutil.copytree(data.with_name("old"), data)


def _lock_exchanged(data: Path) -> None:
    shutil.copy2(data / ".lock", data / "new")
    (data / "new").rename(data / ".lock")


def _partition_copied_back(data: Path) -> None:
    (data / "t-0").rename(data.with_name("old"))
    shutil.copytree(data.with_name("old"), data / "t-0")


def _segment_removed(data: Path) -> None:
    (data / "t-0" / f"{0:020d}.arrow").unlink()


@pytest.mark.parametrize("exchange", [_copied_back, _lock_exchanged, _partition_copied_back, _segment_removed])
def test_exchanged_files_end_the_acknowledgements_soon(
    start: Start, tmp_path: Path, exchange: Callable[[Path], None]
) -> None:
    broker = start()
    acknowledged: list[float] = []
    ended = threading.Event()

    def send() -> None:
        with broker.connect() as client:
            while produce(client, [("t", 0, BATCH)])[0].error_code == 0:
                acknowledged.append(time.monotonic())
        ended.set()

    with broker.connect() as client:
        create_topic(client, "t")
        assert produce(client, [("t", 0, BATCH)])[0].error_code == 0
    sender = threading.Thread(target=_quietly, args=(send, ended))
    sender.start()
    until(lambda: len(acknowledged) > 10, "records are acknowledged")
    exchange(tmp_path / "data")
    exchanged_at = time.monotonic()
    assert ended.wait(30)
    assert broker.wait() == 1
    sender.join(30)
    assert acknowledged[-1] - exchanged_at < 30  # a second, and what a busy machine takes
    last = broker.stderr.splitlines()[-1]
    assert last.startswith("error: all log directories have failed")
    assert "Traceback" not in broker.stderr


def _quietly(send: Callable[[], None], ended: threading.Event) -> None:
    """The broker may end before it answers."""
    try:
        send()
    except (OSError, EOFError):
        ended.set()


def test_the_next_broker_has_the_directory_alone(start: Start, tmp_path: Path) -> None:
    first = start()
    with first.connect() as client:
        create_topic(client, "t")
        assert produce(client, [("t", 0, BATCH)])[0].error_code == 0
    _copied_back(tmp_path / "data")
    second = start()
    assert first.wait() == 1
    with second.connect() as client:
        assert end_offset(client, "t") == 1
        assert produce(client, [("t", 0, BATCH)])[0].error_code == 0
    assert second.stop() == 0
    third = start()
    with third.connect() as client:
        assert end_offset(client, "t") == 2
    assert third.stop() == 0
