"""Reading: batch boundaries, limits, the high watermark, slices that outlive their segment, segment location."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sparklog.environment.files import RealFile
from sparklog.errors import LogCorruptError, OffsetOutOfRangeError
from sparklog.format.batch import iterate_batches
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import append, open_log, read_all, records, segment_files, values


def filled(tmp_path: Path, batches: int = 60, **settings: Any) -> PartitionLog:
    """A log of batches of 1 to 5 records and different sizes, over several segments."""
    log = open_log(tmp_path, {"segment.bytes": 16384, "index.interval.bytes": 2000, **settings})
    for i in range(batches):
        append(log, records(1 + i % 5, first_ms=i, value=bytes([i]) * (1 + 700 * (i % 3))))
    return log


def test_every_offset_and_limit_gives_whole_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    expected = values(log)
    assert [o for o, _ in expected] == list(range(180))
    for max_bytes in (0, 1, 1000, 5000, 1 << 20):
        for offset in range(0, 180, 7):
            first = read_all(log, max_bytes, offset)[0][0]
            assert first.base_offset <= offset < first.next_offset
            assert read_all(log, max_bytes, offset)[-1][0].next_offset == 180


def test_sealed_reopened_and_unsealed_segments_read_alike(tmp_path: Path) -> None:
    log = filled(tmp_path)
    expected = read_all(log)
    log.appender.roll()
    assert read_all(log) == expected
    log.close()
    log = open_log(tmp_path)
    assert read_all(log) == expected
    append(log, records(1))  # un-seals
    assert read_all(log)[:-1] == expected
    assert read_all(log, 3000)[:-1] == expected


def test_a_sealed_segment_is_looked_up_with_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, **{"index.interval.bytes": 1})
    log.appender.roll()
    expected = read_all(log, 1)  # loads the indexes
    reads: list[int] = []
    read = RealFile.read

    def noted(self: RealFile, position: int, size_bytes: int) -> bytes:
        reads.append(position)
        return read(self, position, size_bytes)

    monkeypatch.setattr(RealFile, "read", noted)
    for header, _ in expected:
        reads.clear()
        found = log.reader.read(header.base_offset, 1)  # the batch is larger: it is found, measured, and given whole
        assert found is not None
        found.release()
        assert reads == [found.position]
        assert (found.base_offset, found.next_offset) == (header.base_offset, header.next_offset)


def test_an_empty_read_and_an_offset_out_of_range(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.reader.read(0, 100) is None
    append(log, records(5))
    assert log.reader.read(5, 100) is None
    with pytest.raises(OffsetOutOfRangeError, match="offset 6 of events-0 is out of range: the log goes from 0 to 5"):
        log.reader.read(6, 100)
    with pytest.raises(OffsetOutOfRangeError, match="offset -1"):
        log.reader.read(-1, 100)
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.locate(6, 7)


def test_reads_end_at_the_high_watermark(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        log.appender.append(records(10))
    assert log.reader.read(0, 1 << 20) is None
    assert log.reader.locate(0, 40) == []
    assert log.reader.bytes_available(0) == 0
    log.raise_high_watermark(20)
    assert read_all(log)[-1][0].next_offset == 20
    assert log.reader.read(25, 1 << 20) is None
    assert log.reader.bytes_available(0) == 2 * len(records(10))
    log.raise_high_watermark(10)
    assert log.high_watermark == 20
    log.raise_high_watermark(35)  # inside a batch: that batch is not served
    assert read_all(log)[-1][0].next_offset == 30
    assert log.reader.read(31, 1 << 20) is None
    log.raise_high_watermark(10**9)
    assert log.high_watermark == 40
    log.appender.roll()
    log._state.offsets.high_watermark = 35
    assert read_all(log)[-1][0].next_offset == 30


def test_min_one_batch_can_be_waived(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(10), records(10))
    size = len(records(10))
    for _ in ("active", "sealed"):
        assert log.reader.read(0, size - 1, min_one_batch=False) is None
        piece = log.reader.read(0, size, min_one_batch=False)
        assert piece is not None
        assert (piece.length_bytes, piece.next_offset) == (size, 10)
        piece.release()
        log.appender.roll()


def test_a_slice_outlives_roll_close_and_deletion(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    piece, other = log.reader.read(0, 1 << 20), log.reader.read(0, 1 << 20)
    assert piece is not None
    assert other is not None
    assert piece.is_tail
    log.appender.roll()
    log.mark_deleted()
    segment_files(tmp_path)[0].unlink()
    assert [h.record_count for _, h in iterate_batches(piece.read())] == [3]
    fd = piece.fileno()
    piece.release()
    piece.release()
    assert other.fileno() == fd  # still open for the other one
    other.release()
    with pytest.raises(ValueError, match="released"):
        piece.fileno()


def test_is_tail_means_appended_by_this_process(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.close()
    log = open_log(tmp_path)
    tails = []
    for _ in range(2):
        append(log, records(3))
    for offset in (0, 3, 6):
        piece = log.reader.read(offset, 1)
        assert piece is not None
        tails.append(piece.is_tail)
        piece.release()
    assert tails == [False, True, True]


def test_locate_covers_exactly_the_requested_batches(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for start, end in [(0, 180), (1, 2), (17, 120), (100, 100), (179, 500), (0, 1)]:
        ranges = log.reader.locate(start, end)
        found = []
        for r in ranges:
            data = Path(r.path).read_bytes()[r.start_position : r.end_position]
            found += [h for _, h in iterate_batches(data)]
        expected = [
            h for h, _ in read_all(log) if h.next_offset > start and h.base_offset < min(end, 180) and start < end
        ]
        assert found == expected
    assert [r.base_offset for r in log.reader.locate(0, 180)] == [s.base_offset for s in log.segments]
    assert {r.schema_id for r in log.reader.locate(0, 180)} == {1}
    bases = [s.base_offset for s in log.segments]
    for i in range(len(bases) + 1):
        start = bases[i] if i < len(bases) else 180
        assert [r.base_offset for r in log.reader.locate(start, 180, ranges_max=2)] == bases[i : i + 2]


def test_bytes_available_is_near_the_truth(tmp_path: Path) -> None:
    log = filled(tmp_path)
    sizes = {h.base_offset: len(data) for h, data in read_all(log)}
    for offset in range(0, 181, 9):
        truth = sum(size for base, size in sizes.items() if base >= offset)
        assert abs(log.reader.bytes_available(offset) - truth) <= 2000 + 2 * max(sizes.values())
    assert log.reader.bytes_available(180) == 0
    assert log.reader.bytes_available(179) > 0
    assert log.reader.bytes_available(0) == sum(sizes.values()) == log.size_bytes


@pytest.mark.parametrize("name", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "zeros", "odd length", "other batch", "other offset"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, name: str, damage: str) -> None:
    log = filled(tmp_path)
    expected, latest = read_all(log), log.reader.offset_of_max_timestamp()
    log.close()
    for path in (tmp_path / "events-0").glob(f"*{name}"):
        data = bytearray(path.read_bytes())
        good = bytes(data)
        if damage == "missing":
            path.unlink()
            continue
        if damage == "garbage":
            data[:] = b"\xa5" * len(data)
        elif damage == "zeros":
            data[:] = bytes(len(data))
        elif damage == "odd length":
            data += b"\0"
        elif damage == "other batch" and name == ".index":
            data[4] ^= 8  # no batch begins there
        elif damage == "other offset" and name == ".index":
            data[0] ^= 1  # a batch begins there, but with another offset
        path.write_bytes(data)
        del good
    log = open_log(tmp_path)
    assert read_all(log) == expected
    for header, _ in expected:
        found = read_all(log, 1, header.last_offset)[0][0]
        assert found == header
    assert log.reader.offset_of_max_timestamp() == latest
    for path in segment_files(tmp_path):
        assert path.with_suffix(name).exists()


def test_damage_met_while_reading_is_named(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    for p in (tmp_path / "events-0").glob("*index"):
        p.unlink()
    at = data.find(b"SLB1", 4000)
    data[at : at + 4] = b"XXXX"
    path.write_bytes(data)
    log = open_log(tmp_path)
    with pytest.raises(LogCorruptError, match=r"00000000000000000000\.arrow"):
        read_all(log)


def test_readers_beside_a_writer(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 16384, "index.interval.bytes": 500})
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            offset = 0
            while not (stop.is_set() and offset >= log.high_watermark):
                piece = log.reader.read(offset, 3000)
                if piece is None:
                    offset = offset if not stop.is_set() else log.high_watermark
                    continue
                found = [h for _, h in iterate_batches(piece.read())]
                assert found[0].base_offset == offset == piece.base_offset
                assert found[-1].next_offset == piece.next_offset
                offset = piece.next_offset
                piece.release()
        except BaseException as e:  # noqa: BLE001  (reported below)
            failures.append(e)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(400):
        append(log, records(1 + i % 4))
        if i % 50 == 0:
            log.appender.roll()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert log.segment_count > 10


def test_a_wrong_entry_does_not_make_a_reader_skip_records(tmp_path: Path) -> None:
    """A slice that ends at an indexed batch says where to go on: by the batch itself."""
    log = open_log(tmp_path, {"index.interval.bytes": 1})
    for _ in range(6):
        append(log, records(3))
    log.close()
    path = segment_files(tmp_path)[0].with_suffix(".index")
    for position in range(0, path.stat().st_size, 8):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        log = open_log(tmp_path, {"index.interval.bytes": 1})
        for max_bytes in (1000, 2000, 3000):
            assert [o for o, _ in values(log, max_bytes)] == list(range(18))
        log.close(seal=False)
        data[position] ^= 1
        path.write_bytes(data)
