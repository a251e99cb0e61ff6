"""Batches with a right checksum and a false body, against a real broker. They are refused when they are sent; planted
in its files, every reader gets a typed error, no process dies of a signal, and the batches beside them are read."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.environment.clock import SystemClock
from sparklog.environment.files import RealFiles
from sparklog.errors import CorruptBatchError, MessageTooLargeError
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from tests.support.raw_client import envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, fetch, produce
from tests.unit.format.lies import all_lies, bomb

LIES = all_lies()
FRAMES_OF_VALUES = ("a size that is too large", "a frame that is none")
"""Not decompressed at the append, where nobody can be led astray by them."""
PLANTED = (
    "offsets far outside", "offsets just outside", "negative offsets", "a buffer that is too short", "fewer columns",
    "a header's name that is no UTF-8", "offsets far outside, zstd", "a frame that is none, lz4",
)  # fmt: skip
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.ms": 1}
SETTINGS = "log.cleaner.backoff.ms = 100"
MEMORY_BYTES_MAX = 6 << 30

READER = """
import json, sys
import sparklog
from sparklog import TopicPartition
address, topic, how, end = sys.argv[1:]
errors, offsets = [], []
if how == "table":
    try:
        sparklog.read_table(address, topic)
    except sparklog.errors.SparklogError as e:
        errors.append([type(e).__name__, str(e)])
else:
    with sparklog.Consumer(address, local_read="off" if how == "socket" else "auto") as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning()
        while consumer.position(tp) < int(end):
            try:
                offsets += [r.offset for r in consumer.poll(1000)]
            except sparklog.errors.SparklogError as e:
                errors.append([type(e).__name__, str(e)])
                consumer.seek(tp, int(str(e).rpartition("seek to offset ")[2]))
print(json.dumps([errors, offsets]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], BrokerProcess]]:
    """Starts a broker, one after the other on the same directory."""
    with contextlib.ExitStack() as stack:

        def on_the_directory() -> BrokerProcess:
            work_dir = Path(tempfile.mkdtemp(dir=tmp_path))
            broker = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=work_dir)
            stack.callback(broker.stop, signal.SIGKILL)
            return broker

        yield on_the_directory


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A process of little memory, which must end by itself."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX)),
    )
    assert result.returncode >= 0, f"signal {-result.returncode}: {result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    return result


def plant(data_dir: Path, topic: str, lies: list[bytearray]) -> list[tuple[int, int]]:
    """Appends the lies to a stopped broker's partition, an honest batch of 20 behind each; the lies' offsets."""
    directory = data_dir / f"{topic}-0"
    topic_id = json.loads((directory / "partition.json").read_bytes())["topic_id"]
    owner = LogOwner(topic, topic_id, 0, "timestamp", ("key",), ("value",))
    log = PartitionLog.open(
        directory, owner, LogConfig.from_settings({}), {1: ENVELOPE_SCHEMA}.__getitem__,
        files=RealFiles(), clock=SystemClock(), clean=True,
    )  # fmt: skip
    found = []
    for lie in lies:
        info = log.appender.append_internal(bytearray(lie))
        found.append((info.base_offset, info.last_offset + 1))
        log.appender.append_internal(bytearray(envelope_batch(20, 100)))
    log.close()
    return found


def test_lies_are_refused_when_they_are_sent(start: Callable[[], BrokerProcess]) -> None:
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t")
        for rows in (300, 5):
            for name, lie in all_lies(rows).items():
                if not name.startswith(FRAMES_OF_VALUES) or rows == 5:
                    (result,) = produce(client, [("t", 0, bytes(lie))])
                    assert result.error_code == CorruptBatchError.code, name
        (result,) = produce(client, [("t", 0, bytes(bomb(200 << 20)))])
        assert result.error_code == MessageTooLargeError.code
        (result,) = produce(client, [("t", 0, envelope_batch(20, 100))])
        assert (result.error_code, result.base_offset) == (0, 0)
        assert fetch(client, "t", 0)[0].high_watermark == 20
    assert broker.rss_bytes() < 300 << 20
    assert broker.stop() == 0


@pytest.mark.nightly
def test_lies_in_the_files_kill_no_reader(start: Callable[[], BrokerProcess]) -> None:
    broker = start()
    with broker.connect() as client:
        create_topic(client, "t")
        produce(client, [("t", 0, envelope_batch(20, 100))])
    assert broker.stop() == 0
    some = [LIES[name] for name in PLANTED]
    lies = plant(broker.data_dir, "t", [*some, all_lies(5)["offsets far outside"], bomb(200 << 20)])
    honest = [o for o in range(lies[-1][1] + 20) if not any(a <= o < b for a, b in lies)]
    path = next((broker.data_dir / "t-0").glob("*.arrow"))
    dumped = child("-m", "sparklog.cli", "log", "dump", path)
    assert dumped.returncode == 1
    assert dumped.stdout.count("UNREADABLE batch at byte") == len(lies) - 1
    assert child("-m", "sparklog.cli", "log", "verify", broker.data_dir).stdout.count("damaged ") == len(lies) - 1
    broker = start()
    for how in ("socket", "files"):
        errors, offsets = json.loads(child("-c", READER, broker.address, "t", how, honest[-1] + 1).stdout)
        assert offsets == honest
        assert len(errors) == len(lies)
        for (kind, message), (first, following) in zip(errors, lies, strict=True):
            assert kind in ("CorruptBatchError", "InflatedSizeError")
            assert f"t-0 at offset {first}: " in message
            assert message.endswith(f"seek to offset {following}")
    errors, _ = json.loads(child("-c", READER, broker.address, "t", "table", 0).stdout)
    assert [kind for kind, _ in errors] == ["CorruptBatchError"]
    assert broker.stop() == 0
    assert child("-m", "sparklog.cli", "log", "repair", "--yes", broker.data_dir / "t-0").returncode == 0
    assert len(list((broker.data_dir / "t-0").glob("*.corrupt"))) == len(lies) - 1


def test_the_cleaner_outlives_a_lie(start: Callable[[], BrokerProcess]) -> None:
    broker = start()
    with broker.connect() as client:
        for topic in ("bad", "good"):
            create_topic(client, topic, configs=COMPACT)
    assert broker.stop() == 0
    lies = plant(broker.data_dir, "bad", [LIES["offsets far outside"]])
    for _ in range(2):
        broker = start()
        until(lambda: "the partition is not compacted" in broker.stderr, "the cleaner's message")  # noqa: B023
        assert "bad-0/00000000000000000000.arrow, position " in broker.stderr
        assert f"the batch at offset {lies[0][0]}: " in broker.stderr
        with broker.connect() as client:
            assert fetch(client, "bad", 0)[0].error_code == 0
        assert broker.stop() == 0
