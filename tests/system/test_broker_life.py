"""The broker's life: starting (or saying why not), stopping, crashing, and a full disk."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import ERRORS, StorageFullError
from sparklog.format.batch import iterate_batches
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse
from tests.support.raw_client import envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, end_offset, fetch, handshake, produce, readable

MIB = 1024 * 1024
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers that are gone after the test."""
    started: list[BrokerProcess] = []

    def start_one(data_dir: Path | None = None, **more: Any) -> BrokerProcess:
        work = tmp_path / f"broker{len(started)}"
        work.mkdir()
        started.append(BrokerProcess(data_dir or tmp_path / "data", work_dir=work, **more))
        return started[-1]

    yield start_one
    for broker in started:
        broker.stop(signal.SIGKILL)


def failed_with(broker: BrokerProcess, *words: str) -> None:
    """It has ended with one line on stderr that has `words`."""
    assert broker.first_line == ""
    assert broker.wait() == 1
    lines = [line for line in broker.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, broker.stderr
    assert "Traceback" not in broker.stderr
    for word in words:
        assert word in lines[0]


# -- not starting


def test_a_second_broker_on_the_same_directory(start: Start) -> None:
    first = start()
    failed_with(start(), "in use by another broker", "--data-dir", str(first.data_dir))
    with first.connect() as client:
        assert handshake(client).apis


def test_a_port_that_is_in_use(start: Start, tmp_path: Path) -> None:
    first = start()
    failed_with(start(tmp_path / "other", listen=first.address), first.address, "in use", "--listen")
    assert not (tmp_path / "other").exists(), "nothing is touched before the port is ours"


def test_an_unknown_host(start: Start) -> None:
    failed_with(
        start(listen="no-such-host.invalid:0", settings="allow.insecure = true"), "no-such-host.invalid", "--listen"
    )


def test_an_address_of_another_machine(start: Start) -> None:
    failed_with(start(listen="192.0.2.1:0", settings="allow.insecure = true"), "does not have the address", "--listen")


def test_a_data_directory_that_cannot_be_created(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    failed_with(start(tmp_path / "file" / "data"), "file/data", "--data-dir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_data_directory_that_cannot_be_written(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    failed_with(start(), "--data-dir")


def test_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("num.io.thread = 1")
    command = [sys.executable, "-m", "sparklog_broker", "--config", str(tmp_path / "broker.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'num.io.threads'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "sparklog-data").exists()


# -- stopping


def test_a_clean_stop_seals_everything(start: Start) -> None:
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t", 2)
        produce(client, [("t", 0, envelope_batch(7, 10)), ("t", 1, envelope_batch(9, 10))])
        assert broker.stop(signal.SIGTERM) == 0
    assert (broker.data_dir / "clean-shutdown").exists()
    for partition, rows in ((0, 7), (1, 9)):
        (segment,) = (broker.data_dir / f"t-{partition}").glob("*.arrow")
        with pa.OSFile(str(segment)) as f:
            assert pa.ipc.open_file(f).read_all().num_rows == rows
    again = start()
    assert not (broker.data_dir / "clean-shutdown").exists(), "a crash from here on is no clean stop"
    with again.connect() as client:
        assert produce(client, [("t", 0, envelope_batch(1, 10))])[0].base_offset == 7
        assert [h.record_count for _, h in iterate_batches(fetch(client, "t", 0)[1])] == [7, 1]


def test_stopping_answers_waiting_fetches_and_closes_idle_connections(start: Start) -> None:
    broker = start()
    with broker.connect() as idle, broker.connect() as waiting:
        create_topic(idle, "t")
        waiting.send(Api.FETCH, FetchRequest(60_000, 1, MIB, 0, [FetchPartition("t", 0, 0, MIB)]))
        assert not readable(waiting.sock, 0.1)
        broker.process.terminate()
        response, payload = waiting.receive(Api.FETCH, FetchResponse)
        assert (response.results[0].error_code, len(payload)) == (0, 0)
        assert waiting.sock.recv(1) == b""
        assert idle.sock.recv(1) == b""
    assert broker.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        broker.socket()


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    """A reader that takes nothing delays a stopping broker; a second Ctrl-C ends the wait."""
    broker = start()
    with broker.connect() as client, broker.socket() as stuck:
        create_topic(client, "t")
        for _ in range(20):
            produce(client, [("t", 0, envelope_batch(9000, 100))])
        from sparklog.protocol.codec import encode
        from sparklog.protocol.frames import encode_request

        request = FetchRequest(0, 1, 50 * MIB, 0, [FetchPartition("t", 0, 0, 50 * MIB)])
        stuck.sendall(encode_request(Api.FETCH, 0, 1, encode(request)))
        assert stuck.recv(100, socket.MSG_WAITALL)
        broker.process.terminate()
        until(lambda: "stopping" in broker.stderr, "it has begun to stop")
        assert broker.process.poll() is None
        broker.process.terminate()
        assert broker.wait() == 1, "not the whole time a stop may take"
    assert not (broker.data_dir / "clean-shutdown").exists()
    with start().connect() as client:
        assert end_offset(client, "t") == 180_000


# -- crashing


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk(small_disk: Path, start: Start) -> None:
    ballast = small_disk / "ballast"
    broker = start(small_disk / "data")
    batch = envelope_batch(500, 200)
    with broker.connect() as client:
        create_topic(client, "t", 2)
        ballast.write_bytes(b"x" * (2 * MIB))
        appended = 0
        while True:
            result = produce(client, [("t", 0, batch)])[0]
            if result.error_code:
                break
            appended += 500
        assert ERRORS[result.error_code] is StorageFullError
        assert appended > 0
        assert ERRORS[produce(client, [("t", 0, batch)])[0].error_code] is StorageFullError
        assert broker.stderr.count("disk is full") == 1, "said once, not for every append"

        assert end_offset(client, "t") == appended
        data = fetch(client, "t", 0, max_bytes=8 * MIB)[1]
        assert sum(h.record_count for _, h in iterate_batches(data)) == appended, "reading goes on"

        ballast.unlink()
        assert produce(client, [("t", 0, batch)])[0].base_offset == appended, "and so does appending"
        data = fetch(client, "t", 0, max_bytes=8 * MIB)[1]
        assert sum(h.record_count for _, h in iterate_batches(data)) == appended + 500
    assert broker.stop() == 0


# -- in the background


def test_records_are_flushed_and_checkpointed(start: Start) -> None:
    broker = start(settings="log.flush.interval.ms = 100\n[topic]\nsegment.bytes = 5000\n")
    points = broker.data_dir / "recovery-points.json"
    with broker.connect() as client:
        create_topic(client, "t")
        for _ in range(10):
            produce(client, [("t", 0, envelope_batch(20, 100))])

        def recovery_point() -> int:
            found = json.loads(points.read_text())["partitions"] if points.exists() else {}
            return int(found["t-0"]["recovery_point"]) if "t-0" in found else 0

        until(lambda: recovery_point() == 200, "everything is on the disk, and that is written down")
