"""`sparklog log`: verify, dump, repair, rebuild."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import load_config

from sparklog.cli.app import run_app
from sparklog.cli.log.segment_dump import dump_segment, read_records, segment_paths
from sparklog.client.producer.rows import envelope_batch
from sparklog.errors import CorruptBatchError, LogCorruptError, StorageError
from sparklog.format import batch as batches
from sparklog.format import segment
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE, PARTITION_FILE
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.housekeeping.log_manager import LogManager
from tests.support.inspection import E0, QuickFiles, blocks, fill, flip, segments, specs, started
from tests.support.logs import append, open_log, records
from tests.support.producers import end, produced, send, send_in_transaction


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object, code: int = 0) -> Result:
        capsys.readouterr()
        result = Result(run_app(["log", *map(str, arguments)]), *capsys.readouterr())
        assert result.returncode == code, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    manager = started(tmp_path / "data")
    fill(manager, 20)
    assert manager.close()
    return tmp_path / "data"


def test_verify_a_sound_directory(run: Run, data_dir: Path) -> None:
    result = run("verify", data_dir)
    assert result.stdout.startswith("checked 2 partitions, ")
    assert result.stdout.endswith(": sound\n")
    assert result.stderr == ""
    shown = json.loads(run("verify", data_dir, "--format", "json").stdout)
    assert (shown["sound"], shown["records"], shown["damage"], shown["notes"]) == (True, 80, [], [])


def test_verify_lists_file_and_position(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[0]
    starts = blocks(path)
    flip(path, starts[2] + 900)
    flip(path.with_suffix(".index"), 3)
    result = run("verify", data_dir, code=1)
    first = result.stdout.splitlines()[0]
    assert first.startswith(f"damaged  {path}, position {starts[2]}: checksum is ")
    assert result.stdout.endswith("DAMAGED\n")
    assert result.stderr.startswith("damaged: 1 place in 1 file\n")
    assert "sparklog log repair" in result.stderr
    shown = json.loads(run("verify", data_dir / "events-0", "--format", "json", code=1).stdout)
    assert not shown["sound"]
    assert [(d["path"], d["position"], d["kind"]) for d in shown["damage"]] == [(str(path), starts[2], "batch")]


def test_verify_prints_notes_by_option(run: Run, data_dir: Path) -> None:
    index = segments(data_dir)[0].with_suffix(".index")
    index.unlink()
    assert run("verify", data_dir).stdout.endswith("sound (1 note, shown with --notes)\n")
    assert f"note     {index}, position 0: missing" in run("verify", data_dir, "--notes").stdout


def test_verify_several_directories(run: Run, tmp_path: Path) -> None:
    manager = LogManager(tmp_path / "data", log_dirs=[tmp_path / "a", tmp_path / "b"], files=QuickFiles())
    manager.load("c1", specs())
    append(manager.table.get(E0), records(3))
    assert run("verify", tmp_path / "a", tmp_path / "b").stdout.startswith("checked 2 partitions, 1 segment, 3 records")
    manager.close()
    run("verify", tmp_path / "a", tmp_path / "b")


def test_verify_of_a_path_without_a_log(run: Run, tmp_path: Path) -> None:
    assert "does not exist" in run("verify", tmp_path / "nothing", code=1).stderr


def test_dump_indexes(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[1]
    base, starts = int(path.stem), blocks(path)
    shown = json.loads(run("dump", path, "--indexes", "--format", "json").stdout)
    assert shown["offset_index"][0] == {"offset": base + 2, "position": starts[1]}
    assert len(shown["offset_index"]) == shown["index_entries"] == len(starts) - 2
    assert set(shown["time_index"][0]) == {"offset", "timestamp_ms"}
    text = run("dump", path, "--indexes", "--max-batches", 1).stdout
    assert f"offset index: {len(starts) - 2} entries" in text
    assert str(starts[1]) in text
    assert "more entries (--max-batches 0 shows all)" in text
    assert "more entries" not in run("dump", path, "--indexes", "--max-batches", 0).stdout


def test_dump_indexes_that_are_missing_or_cut(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[0]
    path.with_suffix(".timeindex").unlink()
    index = path.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:13])
    shown = json.loads(run("dump", path, "--indexes", "--format", "json").stdout)
    assert len(shown["offset_index"]) == 1
    assert "time_index" not in shown


def test_dump_verify_finds_faults_that_checksums_miss(run: Run, data_dir: Path) -> None:
    directory = data_dir / "events-0"
    assert run("dump", directory, "--verify").stdout.endswith(": sound\n")
    index = segments(data_dir)[0].with_suffix(".timeindex")
    flip(index, 0)
    run("dump", directory)
    result = run("dump", directory, "--verify", code=1)
    assert f"damaged  {index}, position 0: entry 0 is not the largest timestamp" in result.stdout
    lines = run("dump", directory, "--verify", "--format", "json", code=1).stdout.splitlines()
    assert json.loads(lines[-1])["verify"]["damage"][0]["path"] == str(index)


def test_repair_is_a_dry_run_by_default(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[0]
    starts = blocks(path)
    flip(path, starts[2] + 900)
    damaged = path.read_bytes()
    directory = data_dir / "events-0"
    assert "nothing to repair, 40 records" in run("repair", data_dir / "events-1").stdout
    for target in (directory, data_dir):
        result = run("repair", target, code=1)
        assert f"{directory}: would keep 38 records" in result.stdout
        assert f"  {path}, position {starts[2]}: checksum is " in result.stdout
        assert f"bytes to {path.name}.{starts[2]}.corrupt" in result.stdout
        assert "offsets 4 to 5 would be missing" in result.stdout
        assert "run the command again with --yes" in result.stderr
        assert path.read_bytes() == damaged
    shown = [json.loads(line) for line in run("repair", data_dir, "--format", "json", code=1).stdout.splitlines()]
    assert [(s["changed"], s["records"], s["gaps"]) for s in shown] == [
        (True, 38, [{"first": 4, "last": 5}]),
        (False, 40, []),
    ]


def test_repair_keeps_intact_batches_and_verify_agrees(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[0]
    starts = blocks(path)
    flip(path, starts[2] + 900)
    assert "kept 38 records" in run("repair", data_dir, "--yes").stdout
    quarantined = path.with_name(f"{path.name}.{starts[2]}.corrupt")
    assert quarantined.stat().st_size == starts[3] - starts[2]
    result = run("verify", data_dir, "--notes")
    assert "offsets 4 to 5 are missing before this batch: a repair removed them" in result.stdout
    assert "nothing to repair" in run("repair", data_dir / "events-0").stdout
    manager = started(data_dir)
    assert not manager.table.offline
    assert manager.table.get(E0).log_end_offset == 40
    manager.close()
    run("verify", data_dir)


def test_repair_refuses_while_a_broker_runs(run: Run, data_dir: Path) -> None:
    manager = started(data_dir)
    for target in (data_dir, data_dir / "events-0"):
        result = run("repair", target, "--yes", code=1)
        assert f"{data_dir} is in use by a broker; stop it, then repair" in result.stderr
    run("repair", data_dir)  # a dry run only reads
    assert manager.close()


def test_repair_of_a_copy_that_is_in_no_log_directory(run: Run, data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "events-0", tmp_path / "copy" / "events-0")
    path = tmp_path / "copy" / "events-0" / segments(data_dir)[0].name
    flip(path, blocks(path)[0] + 900)
    run("repair", tmp_path / "copy" / "events-0", "--yes")
    assert not (tmp_path / "copy" / ".lock").exists()
    run("verify", tmp_path / "copy" / "events-0")


def test_repair_needs_a_directory(run: Run, data_dir: Path) -> None:
    path = segments(data_dir)[0]
    assert f"is a file; name the partition's directory, {path.parent}" in run("repair", path, code=1).stderr


def test_dump_shows_producers_and_markers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    log = open_log(tmp_path)
    send(log, produced(5, 0, rows=2))
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=False)
    log.close()
    directory = tmp_path / "events-0"
    shown = run("dump", directory, "--records", "9").stdout
    assert "7 epoch 1" in shown
    assert "abort" in shown
    facts = json.loads(run("dump", directory, "--format", "json").stdout)["batches"]
    assert [(b["kind"], b["producer_id"], b["base_sequence"]) for b in facts] == [
        ("data", 5, 0),
        ("transactional", 7, 0),
        ("abort", 7, 0),
    ]
    snapshot, (index,) = max(directory.glob("*.snapshot")), directory.glob("*.txnindex")
    assert "producers at offset 4" in run("dump", snapshot).stdout
    assert [p["producer_id"] for p in json.loads(run("dump", snapshot, "--format", "json").stdout)["producers"]] == [
        5,
        7,
    ]
    assert json.loads(run("dump", index, "--format", "json").stdout)["aborted"][0]["last_offset"] == 3
    assert "first_offset" in run("dump", index).stdout
    index.write_bytes(b"?")
    run("dump", index, code=1)


# The directory of a cluster's broker: `sparklog log` knows it, and so does a broker that is started alone


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    manager = started(tmp_path / "data")
    fill(manager, 5)
    assert manager.close()
    (tmp_path / "data" / CLUSTER_IMAGE_FILE).write_bytes(b"an image of the cluster")
    return tmp_path / "data"


def rebuild(directory: Path, *options: str) -> int:
    return run_app(["log", "rebuild-metadata", "--data-dir", str(directory), "--yes", *options])


def test_its_topics_are_in_zookeeper(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rebuild(directory) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is the directory of broker 0 of cluster" in said and "--zookeeper HOST:PORT" in said
    assert not (directory / "metadata.db").exists()


def test_if_zookeeper_is_lost_for_good_it_can_be_had_alone(directory: Path) -> None:
    assert rebuild(directory, "--force") == 0
    assert (directory / "metadata.db").exists()
    assert not (directory / CLUSTER_IMAGE_FILE).exists(), "it is no cluster's directory any more"


def test_a_member_started_alone_is_referred_to_its_cluster(directory: Path) -> None:
    async def start() -> None:
        Broker.open(load_config(None, data_dir=str(directory)), asyncio.get_running_loop())

    with pytest.raises(StorageError, match=r"is the directory of broker 0 of cluster .*--zookeeper"):
        asyncio.run(start())


# `sparklog log dump` on files made with sparklog.format


SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
INFO = segment.SegmentInfo("t", "0" * 32, 2, 10, 1)


def write(directory: Path, compressions: list[str], *, seal: bool) -> tuple[Path, list[int]]:
    """A segment with one batch of 3 rows per compression; returns its path and the batches' positions."""
    data = bytearray(segment.encode_head(SCHEMA, INFO))
    positions, metadata_lengths = [], []
    for i, compression in enumerate(compressions):
        rows = pa.record_batch({"n": [3 * i, 3 * i + 1, 3 * i + 2], "s": ["x" * 500] * 3}, schema=SCHEMA)
        message = batches.encode_batch(
            rows, schema_id=1, min_timestamp_ms=1000 + i, max_timestamp_ms=2000 + i, compression=compression
        )
        header = batches.decode_header(message)
        batches.stamp_batch(message, 0, header, base_offset=10 + 3 * i, leader_epoch=4, append_time_ms=5000)
        positions.append(len(data))
        metadata_lengths.append(header.metadata_length_bytes)
        data += message
    if seal:
        data += segment.encode_seal(
            SCHEMA, INFO, np.array(positions, np.int64), np.array(metadata_lengths, np.int32), len(data)
        )
    path = directory / segment.segment_name(10)
    path.write_bytes(data)
    return path, positions


def test_a_sealed_segment(tmp_path: Path) -> None:
    path, positions = write(tmp_path, ["none", "lz4", "zstd"], seal=True)
    path.with_suffix(".index").write_bytes(bytes(20))
    facts = dump_segment(path)
    assert (facts.topic, facts.partition, facts.base_offset, facts.sealed, facts.end) == ("t", 2, 10, True, "end")
    assert (facts.index_entries, facts.time_index_entries) == (2, None)
    assert [b.position for b in facts.batches] == positions
    assert [b.compression for b in facts.batches] == ["none", "lz4", "zstd"]
    assert [(b.base_offset, b.last_offset, b.records) for b in facts.batches] == [(10, 12, 3), (13, 15, 3), (16, 18, 3)]
    assert all(b.crc_ok and b.leader_epoch == 4 and b.timestamp_type == "CreateTime" for b in facts.batches)
    assert facts.records == 9


def test_an_active_segment(tmp_path: Path) -> None:
    facts = dump_segment(write(tmp_path, ["none"], seal=False)[0])
    assert (facts.sealed, facts.end, facts.records) == (False, "end", 3)


def test_a_packed_batch_is_not_called_compressed(tmp_path: Path) -> None:
    packed = encode_packed_batch(envelope_batch([b"v"] * 300, None, None, np.zeros(300, np.int64)), schema_id=1)
    assert packed is not None
    path = tmp_path / segment.segment_name(10)
    path.write_bytes(segment.encode_head(ENVELOPE_SCHEMA, INFO) + _stamped(packed.payload))
    assert [(b.compression, b.records) for b in dump_segment(path).batches] == [("none", 300)]


def test_records(tmp_path: Path) -> None:
    facts = dump_segment(write(tmp_path, ["none", "lz4"], seal=True)[0])
    rows = list(read_records(facts, 4))
    assert [(row["_offset"], row["n"]) for row in rows] == [(10, 0), (11, 1), (12, 2), (13, 3)]


@pytest.mark.parametrize(("broken", "end"), [(0, "corrupt"), (1, "torn tail")])
def test_a_flipped_bit_is_detected_and_located(tmp_path: Path, broken: int, end: str) -> None:
    path, positions = write(tmp_path, ["none", "none"], seal=False)
    data = bytearray(path.read_bytes())
    data[positions[broken] + 700] ^= 1
    path.write_bytes(data)
    facts = dump_segment(path)
    assert (facts.end, facts.data_end) == (end, positions[broken])
    assert [b.crc_ok for b in facts.batches] == [True] * broken + [False]
    assert "checksum" in facts.problem
    assert len(list(read_records(facts, 100))) == 3 * broken


def test_a_cut_batch(tmp_path: Path) -> None:
    path, positions = write(tmp_path, ["none", "none"], seal=False)
    path.write_bytes(path.read_bytes()[:-100])
    facts = dump_segment(path)
    assert (facts.end, facts.data_end, len(facts.batches)) == ("torn tail", positions[1], 1)


def test_not_a_segment(tmp_path: Path) -> None:
    for content in (b"", b"no arrow file at all, but of some length"):
        path = tmp_path / "x.arrow"
        path.write_bytes(content)
        with pytest.raises((LogCorruptError, CorruptBatchError), match=r"x\.arrow"):
            dump_segment(path)


def test_directories(tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base in (20, 0, 3):
        (partition / segment.segment_name(base)).touch()
    (partition / "00000000000000000000.index").touch()
    assert [segment.parse_segment_name(p.name) for p in segment_paths(partition)] == [0, 3, 20]
    with pytest.raises(LogCorruptError, match="partitions in it: t-0"):
        segment_paths(tmp_path)
    empty = tmp_path / "e-0"
    empty.mkdir()
    (empty / PARTITION_FILE).touch()
    assert segment_paths(empty) == []


def _stamped(message: memoryview) -> bytes:
    header = batches.decode_header(message)
    batches.stamp_batch(message, 0, header, base_offset=10, leader_epoch=4, append_time_ms=5000)
    return bytes(message)
