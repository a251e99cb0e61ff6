"""Opening a log again: after a clean stop, after a crash at every byte, and with damaged or foreign files."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from sparklog.errors import LogCorruptError
from sparklog.format.segment import decode_seal
from sparklog.log.model.log_config import LogOwner
from tests.support.logs import SCHEMAS, append, open_log, read_all, records, segment_files, values


def test_clean_stop_seals_and_the_next_append_goes_on_in_the_same_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.close()
    (path,) = segment_files(tmp_path)
    sealed = path.read_bytes()
    log = open_log(tmp_path)
    assert path.read_bytes() == sealed
    assert append(log, records(2)) == 3
    assert segment_files(tmp_path) == [path]
    assert not path.read_bytes().endswith(b"ARROW1")
    assert [o for o, _ in values(log)] == [0, 1, 2, 3, 4]
    log.close()
    assert pa.ipc.open_file(pa.memory_map(str(path))).num_record_batches == 2


def test_every_file_of_a_stopped_log_opens_in_arrow_tools(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for i in range(12):
        append(log, records(3, value=b"x" * 300, compression=("none", "lz4", "zstd")[i % 3]))
    append(log, records(3, schema_id=2))
    expected = values(log)
    log.close()
    paths = segment_files(tmp_path)
    assert len(paths) > 3
    tables = [pa.ipc.open_file(pa.memory_map(str(p))).read_all() for p in paths]
    assert [v for t in tables for v in t["value"].to_pylist()] == [v for _, v in expected]
    assert tables[-1].schema.remove_metadata().equals(SCHEMAS[2])
    rows = sum(pl.scan_ipc(p).select(pl.len()).collect().item() for p in paths)
    assert rows == len(expected)
    assert pl.scan_ipc(paths[:-1]).collect()["value"].to_list() == [v for _, v in expected[:-3]]


def test_a_crash_loses_no_written_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for _ in range(20):
        append(log, records(3, value=b"x" * 100))
    expected = read_all(log)
    reopened = open_log(tmp_path, {"segment.bytes": 4096}, clean=False)
    assert read_all(reopened) == expected
    assert append(reopened, records(1)) == 60
    assert read_all(reopened)[:-1] == expected


def crashed(tmp_path: Path) -> tuple[Path, bytes, int]:
    """A log of three batches, not closed: its file, content, and where the last batch begins."""
    log = open_log(tmp_path)
    append(log, records(3), records(2))
    (path,) = segment_files(tmp_path)
    last = path.stat().st_size
    append(log, records(2))
    return path, path.read_bytes(), last


def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, data, last = crashed(tmp_path)
    for size in range(last, len(data)):
        path.write_bytes(data[:size])
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            log = open_log(tmp_path, clean=False)
        assert (log.log_end_offset, path.stat().st_size) == (5, last)
        assert (f"cut {size - last} bytes behind offset 5" in caplog.text) == (size > last)
    assert append(log, records(1)) == 5
    assert [o for o, _ in values(log)] == list(range(6))


def test_a_tail_extended_before_its_data_is_cut(tmp_path: Path) -> None:
    path, data, last = crashed(tmp_path)
    for tail in (bytes(5000), data[last : last + 100] + bytes(4000), b"\xff\xff\xff\xff" * 50):
        path.write_bytes(data[:last] + tail)
        assert open_log(tmp_path, clean=False).log_end_offset == 5
        assert path.stat().st_size == last


def test_a_flipped_bit_at_the_tail_is_cut_but_in_the_middle_it_is_corrupt(tmp_path: Path) -> None:
    path, data, last = crashed(tmp_path)
    for at in range(last, len(data), 5):
        flipped = bytearray(data)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        try:
            log = open_log(tmp_path, clean=False)
        except LogCorruptError as e:  # the bit was in the stamp's offset, which has no checksum
            assert "base offset" in str(e)
            assert path.read_bytes() == flipped
        else:
            assert log.log_end_offset in (5, 7)  # 7: it was in the stamp's epoch or time
    first = data.find(b"\xff\xff\xff\xff", 16)
    for at in range(first, last, 5):
        flipped = bytearray(data)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        try:
            log = open_log(tmp_path, clean=False)
        except LogCorruptError as e:
            assert f"{path}, position" in str(e)
            assert path.read_bytes() == flipped
        else:
            assert log.log_end_offset == 7


def test_below_the_recovery_point_no_record_is_cut(tmp_path: Path) -> None:
    path, data, _last = crashed(tmp_path)
    path.write_bytes(data[:-3])
    with pytest.raises(LogCorruptError, match="had all offsets below 7"):
        open_log(tmp_path, clean=False, recovery_point=7)
    assert path.read_bytes() == data[:-3]
    assert open_log(tmp_path, clean=False, recovery_point=5).log_end_offset == 5


def test_a_torn_footer_is_cut_and_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3), records(2))
    (path,) = segment_files(tmp_path)
    end = path.stat().st_size
    log.close()
    sealed = path.read_bytes()
    for size in range(end, len(sealed)):
        path.write_bytes(sealed[:size])
        log = open_log(tmp_path, clean=False)
        assert (log.log_end_offset, path.stat().st_size) == (5, end)
    log.close()
    assert path.read_bytes() == sealed


def test_a_sealed_last_segment_is_checked_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3), records(2))
    log.close()
    (path,) = segment_files(tmp_path)
    sealed = bytearray(path.read_bytes())
    assert open_log(tmp_path, clean=False).log_end_offset == 5
    assert path.read_bytes() == sealed
    blocks = decode_seal(lambda p, n: bytes(sealed[p : p + n]), len(sealed))
    assert blocks is not None
    sealed[int(blocks.positions[0]) + 400] ^= 1
    path.write_bytes(sealed)
    with pytest.raises(LogCorruptError):
        open_log(tmp_path, clean=False)


def test_an_earlier_segment_without_footer_is_sealed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    (path,) = segment_files(tmp_path)
    data = path.read_bytes()
    log.appender.roll()
    sealed = path.read_bytes()
    append(log, records(2))
    expected = read_all(log)
    path.write_bytes(data + b"\xff\xff\xff\xff\0")
    path.with_suffix(".index").unlink()
    log = open_log(tmp_path, clean=False)
    assert path.read_bytes() == sealed
    assert path.with_suffix(".index").exists()
    assert read_all(log) == expected


@pytest.mark.parametrize("clean", [True, False])
def test_a_gap_or_overlap_takes_the_log_offline_untouched(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, records(3))
        log.appender.roll()
    paths = segment_files(tmp_path)
    saved = tmp_path / "saved"
    shutil.copytree(paths[0].parent, saved)
    paths[1].unlink()
    with pytest.raises(LogCorruptError, match="leaves a gap before 00000000000000000006"):
        open_log(tmp_path, clean=clean)
    assert len(segment_files(tmp_path)) == 2
    shutil.copy(saved / paths[1].name, paths[1])
    assert len(values(open_log(tmp_path, clean=clean))) == 9
    # an unsealed first segment that lost its end is not cut: others follow
    blocks = decode_seal(lambda p, n: paths[1].read_bytes()[p : p + n], paths[1].stat().st_size)
    assert blocks is not None
    torn = paths[1].read_bytes()[: blocks.data_end - 3]
    paths[1].write_bytes(torn)
    with pytest.raises(LogCorruptError, match="the next segment begins at 6"):
        open_log(tmp_path, clean=clean)
    assert paths[1].read_bytes() == torn


def test_the_head_of_a_crashed_file_is_removed_at_every_length(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.appender.roll()
    before = segment_files(tmp_path)
    append(log, records(1))
    new = segment_files(tmp_path)[-1]
    head = new.read_bytes()[: log.segments[-1].data_position]
    for size in range(len(head)):
        new.write_bytes(head[:size])
        log = open_log(tmp_path, clean=False)
        assert segment_files(tmp_path) == before
        assert log.log_end_offset == 3
    new.write_bytes(bytes(4096))
    open_log(tmp_path, clean=False)
    assert segment_files(tmp_path) == before
    new.write_bytes(head)  # complete, without a batch
    log = open_log(tmp_path, clean=False)
    assert log.log_end_offset == 3
    assert append(log, records(2)) == 3
    assert [o for o, _ in values(log)] == list(range(5))
    new.write_bytes(head)  # the same, and the next batch has another schema
    log = open_log(tmp_path, clean=False)
    assert append(log, records(2, schema_id=2)) == 3
    assert [s.base_offset for s in log.segments] == [0, 3]
    assert [o for o, _ in values(open_log(tmp_path, clean=False))] == list(range(5))


def test_a_damaged_head_with_batches_behind_is_kept(tmp_path: Path) -> None:
    path, data, _ = crashed(tmp_path)
    for damaged in (b"XRROW1" + data[6:], data[:12] + b"\xff\xff\x0f\0" + data[16:], bytes(16) + data[16:]):
        path.write_bytes(damaged)
        with pytest.raises(LogCorruptError, match="position 0"):
            open_log(tmp_path, clean=False)
        assert path.read_bytes() == damaged


def test_files_of_another_topic_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.close()
    other = LogOwner("events", "1" * 32, 0)
    with pytest.raises(LogCorruptError, match="move it away"):
        open_log(tmp_path, owner=other)
    (tmp_path / "events-0" / "partition.json").unlink()
    with pytest.raises(LogCorruptError, match="belongs to"):
        open_log(tmp_path, owner=other)


def test_an_unknown_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, records(3, schema_id=2))
    log.close()
    monkeypatch.delitem(SCHEMAS, 2)
    with pytest.raises(LogCorruptError, match="schema 2"):
        open_log(tmp_path)


def test_missing_files_are_noticed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.close()
    segment_files(tmp_path)[0].unlink()
    with pytest.raises(LogCorruptError, match="files are missing"):
        open_log(tmp_path, clean=True, high_watermark=3)
    with pytest.raises(LogCorruptError, match="files are missing"):
        open_log(tmp_path, clean=False, high_watermark=3, recovery_point=3)
    # after a crash a high watermark may stand above what was on the disk
    assert open_log(tmp_path, clean=False, high_watermark=3).high_watermark == 0


def test_leftovers_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.close()
    directory = tmp_path / "events-0"
    for name in ("00000000000000000009.index", "00000000000000000009.timeindex", "partition.json.tmp", "notes.txt"):
        (directory / name).write_bytes(b"x")
    open_log(tmp_path)
    assert {p.name for p in directory.iterdir()} == {
        "00000000000000000000.arrow",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epochs.json",
        "partition.json",
        "notes.txt",
    }
