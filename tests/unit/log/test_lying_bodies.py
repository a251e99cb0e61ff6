"""Batches whose checksum is right and whose body lies: not appended; where they are in a file, found, set aside, not
copied."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.cli.log.segment_dump import dump_segment, read_records
from sparklog.environment.files import RealFiles
from sparklog.errors import CorruptBatchError, LogCorruptError, MessageTooLargeError
from sparklog.format.batch import (
    ATTRIBUTE_OFFSET_COLUMN,
    ProducerFields,
    decode_header,
    stamp_batch,
    write_producer_fields,
)
from sparklog.format.offset_column import decode_rows, with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.segment import decode_head, encode_head, segment_name
from sparklog.log.state.check import INFLATED_PER_WRITTEN, work_bytes
from sparklog.log.tools.repair import repair
from sparklog.log.tools.verify import verify
from sparklog.log.tools.verify_segment import check_segment
from tests.support.compaction import OWNER as KEYED
from tests.support.compaction import compact, keyed_batch, open_keyed
from tests.support.logs import SCHEMAS, append, open_log, records, segment_files, values
from tests.unit.format.lies import all_lies, bomb, encoded, envelope, resealed, with_offset, with_rows

FEW = {name: all_lies()[name] for name in ("offsets far outside", "fewer columns", "offsets far outside, zstd")}
SMALL_LIE = all_lies(5)["offsets just outside"]
STAMPED = ("base_offset", "leader_epoch", "append_time_ms")


@pytest.mark.parametrize("name", FEW)
def test_lies_are_not_appended(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    for payload in (FEW[name], records(2) + FEW[name], SMALL_LIE):
        with pytest.raises(CorruptBatchError, match="does not fit the topic's schema"):
            log.appender.append(bytearray(payload))
    assert [o for o, _ in values(log)] == [0, 1, 2]
    assert log.log_end_offset == 3
    append(log, bytearray(encoded(envelope())))
    log.close()


def test_a_bomb_is_too_large(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"max.message.bytes": 1 << 20, "max.message.inflated.ratio": 8})
    data = bomb((8 << 20) + 1)
    assert len(data) < 1 << 16
    before = pa.total_allocated_bytes()
    with pytest.raises(
        MessageTooLargeError, match=r"decompressed bytes, at most 8388608 bytes.*max\.message\.inflated\.ratio"
    ):
        log.appender.append(data)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert log.appender.append(bomb(7 << 20)).record_count == 1
    log.close()


def test_the_work_of_a_payload_is_estimated_before_its_check() -> None:
    small, large = records(3), bomb(8 << 20)
    assert work_bytes(memoryview(small + small)) == 2 * len(small)
    assert work_bytes(memoryview(small + large)) >= (8 << 20) // INFLATED_PER_WRITTEN
    assert work_bytes(memoryview(b"no batch")) == 8


# --- in files ---


def planted(directory: Path, *lies: bytearray, sealed: bool = True) -> Path:
    """A partition of three honest batches, one of them before the lies; its segment."""
    log = open_log(directory)
    append(log, records(3))
    for lie in lies:
        log.appender.append_internal(bytearray(lie))  # the broker trusts what it has written itself
    append(log, records(2), records(2))
    log.close(seal=sealed)
    return segment_files(directory)[0]


@pytest.mark.parametrize("name", FEW)
def test_verify_names_file_and_byte_and_dump_names_the_fault(tmp_path: Path, name: str) -> None:
    path = planted(tmp_path, FEW[name])
    facts = dump_segment(path)
    lying = facts.batches[1]
    assert facts.is_damaged and lying.crc_ok and "cannot be read" in lying.problem
    assert [b.problem for b in facts.batches if b is not lying] == ["", "", ""]
    assert facts.as_json()["batches"][1]["problem"] == lying.problem
    assert [r["_offset"] for r in read_records(facts, 1000)] == [0, 1, 2]
    damage = verify([tmp_path / "events-0"]).damage
    assert [(d.path, d.position, d.kind) for d in damage] == [(str(path), lying.position, "batch")]
    assert "offset 3" in damage[0].message


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    ("offsets", "is_sound"),
    [
        ([3, 4, 6, 8, 9], True),
        ([3, 6, 4, 8, 9], False),
        ([3, 2**63 - 1, 4 - 2**63, 2, 9], False),  # each difference as an int64, which overflows, is above 0
    ],
)
def test_offsets_of_compacted_batches(tmp_path: Path, offsets: list[int], is_sound: bool, compression: str) -> None:
    columns = [*envelope(len(offsets)).columns, pa.array(offsets)]
    rows = pa.record_batch(columns, schema=with_offset_column(ENVELOPE_SCHEMA))
    batch = encoded(rows, compression)
    resealed(batch, attributes=decode_header(batch).attributes | ATTRIBUTE_OFFSET_COLUMN, last_offset_delta=6)
    stamp_batch(batch, 0, decode_header(batch), base_offset=3, leader_epoch=0, append_time_ms=0)
    data = bytes(batch)
    first = planted(tmp_path, sealed=False)
    info = decode_head(lambda at, size: first.read_bytes()[at : at + size]).info
    path = first.with_name(segment_name(3))
    first.rename(path)
    path.write_bytes(encode_head(rows.schema, info._replace(base_offset=3)) + data)
    facts = dump_segment(path)
    (stored,) = facts.batches
    damage = verify([tmp_path / "events-0"]).damage
    if is_sound:
        assert decode_rows(data, ENVELOPE_SCHEMA, decode_header(data))[1].tolist() == offsets  # type: ignore[union-attr]
        assert (stored.problem, damage) == ("", [])
        assert [r["_offset"] for r in read_records(facts, 100)] == offsets
    else:
        with pytest.raises(CorruptBatchError, match="offsets do not fit a batch of 3 to 9"):
            decode_rows(data, ENVELOPE_SCHEMA, decode_header(data))
        assert "offsets do not fit a batch of 3 to 9" in stored.problem
        assert [(d.path, d.position) for d in damage] == [(str(path), stored.position)]
        assert list(read_records(facts, 100)) == []


def test_verify_notes_batches_that_are_too_large_to_check(tmp_path: Path) -> None:
    path = planted(tmp_path, bomb(300 << 20))
    findings = check_segment(path, is_last=True, stopped_clean=True).findings
    assert not findings.damage
    assert ["at most 268435456 bytes" in n.message for n in findings.notes] == [True]
    assert "not checked" in dump_segment(path).batches[1].problem
    assert repair(path.parent, RealFiles(), dry_run=True).records == 8


@pytest.mark.parametrize("sealed", [True, False])
def test_repair_puts_lies_aside(tmp_path: Path, sealed: bool) -> None:
    path = planted(tmp_path, FEW["offsets far outside"], SMALL_LIE, sealed=sealed)
    positions = [b.position for b in dump_segment(path).batches if b.problem]
    assert len(positions) == 2
    dry = repair(path.parent, RealFiles(), dry_run=True)
    report = repair(path.parent, RealFiles(), dry_run=False)
    assert [f.position for f in report.findings] == [f.position for f in dry.findings] == positions
    assert report.gaps == [(3, 308)]
    aside = path.with_name(f"{path.name}.{positions[0]}.corrupt")
    assert aside.stat().st_size == len(FEW["offsets far outside"])
    assert not verify([path.parent]).damage
    log = open_log(tmp_path)
    assert [o for o, _ in values(log)] == [0, 1, 2, 308, 309, 310, 311]
    log.close()


def test_repair_does_not_take_a_wrong_head_for_lying_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(20, schema_id=2))
    log.close(seal=False)
    path = segment_files(tmp_path)[0]
    data = path.read_bytes()
    right = decode_head(lambda at, size: data[at : at + size])
    wrong = encode_head(right.schema.set(4, pa.field("extra", pa.int32())), right.info)
    path.write_bytes(wrong + data[right.data_position :])
    assert [f.kind for f in check_segment(path, is_last=True, stopped_clean=False).findings.damage] == ["head"]
    with pytest.raises(LogCorruptError, match="it is unclear if the head or the batches are wrong"):
        repair(path.parent, RealFiles(), dry_run=True)
    assert repair(path.parent, RealFiles(), dry_run=True, schema_of=SCHEMAS.__getitem__).records == 20


@pytest.mark.parametrize("name", [*FEW, "small"])
def test_compaction_stops_with_the_file_and_the_offset(tmp_path: Path, name: str) -> None:
    log = open_keyed(tmp_path)
    append(log, keyed_batch([(b"a", b"1"), (b"b", b"2")]))
    log.appender.append_internal(bytearray(FEW.get(name, SMALL_LIE)))
    append(log, keyed_batch([(b"a", b"3")]))
    log.appender.roll()
    append(log, keyed_batch([(b"c", b"4")]))
    files = {p.name: p.read_bytes() for p in (tmp_path / KEYED.directory_name).glob("*.arrow")}
    with pytest.raises(
        LogCorruptError, match=r"0000\.arrow, position \d+: the batch at offset 2: .*the partition is not compacted"
    ):
        compact(log, roll=False)
    assert {p.name: p.read_bytes() for p in (tmp_path / KEYED.directory_name).glob("*.arrow")} == files
    log.close()


def test_compaction_meets_a_schema_that_the_topic_does_not_have(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append(log, keyed_batch([(b"a", b"1")]))
    log.appender.append_internal(keyed_batch([(b"a", b"2")]))
    log.appender.roll()
    append(log, keyed_batch([(b"a", b"3")]))
    name_another_schema(tmp_path / KEYED.directory_name, 1)
    with pytest.raises(
        LogCorruptError, match=r"0000\.arrow, position \d+: the batch at offset 1: it names schema 77.*not compacted"
    ):
        compact(log, roll=False)
    log.close()


def name_another_schema(directory: Path, batch: int) -> None:
    """Of one batch of a partition's first segment, which stays in place; its checksum is right."""
    path = sorted(directory.glob("*.arrow"))[0]
    at = dump_segment(path).batches[batch].position
    data = bytearray(path.read_bytes())
    header = decode_header(data, at)
    message = memoryview(data)[at : at + header.size_bytes]
    crc = write_producer_fields(message, header.stamp_position, ProducerFields(*header[4:14])._replace(schema_id=77))
    stamp_batch(message, 0, header._replace(crc=crc), **{f: getattr(header, f) for f in STAMPED})
    with path.open("r+b") as file:
        file.write(data)


def test_compaction_does_not_inflate_bombs(tmp_path: Path) -> None:
    log = open_keyed(tmp_path, {"max.message.bytes": 1 << 20, "max.message.inflated.ratio": 2})
    log.appender.append_internal(bomb(64 << 20))
    append(log, keyed_batch([(b"a", b"3")]))
    log.appender.roll()
    append(log, keyed_batch([(b"a", b"4")]))
    before = pa.total_allocated_bytes()
    with pytest.raises(LogCorruptError, match=r"position .*at most 2097152 bytes"):
        compact(log, roll=False)
    assert pa.total_allocated_bytes() - before < 1 << 20
    log.close()


def test_lookups_by_time_meet_a_lie(tmp_path: Path) -> None:
    good = encoded(envelope())
    log = open_log(tmp_path)
    log.appender.append_internal(with_rows(good, 2**31 - 1))
    log.raise_high_watermark(log.log_end_offset)
    for look in (lambda: log.reader.offset_for_timestamp(0), log.reader.offset_of_max_timestamp):
        with pytest.raises(CorruptBatchError, match=r"\.arrow, position \d+: the batch at offset 0"):
            look()
    log.close()


def test_lookups_by_time_meet_a_schema_that_the_topic_does_not_have(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    log.raise_high_watermark(log.log_end_offset)
    name_another_schema(tmp_path / "events-0", 0)
    for look in (lambda: log.reader.offset_for_timestamp(0), log.reader.offset_of_max_timestamp):
        with pytest.raises(CorruptBatchError, match=r"position \d+: the batch at offset 0: it names schema 77"):
            look()
    log.close()


def test_a_lie_between_good_offsets_is_detected_by_its_data_alone(tmp_path: Path) -> None:
    """Just outside is enough: the bytes behind the data are another buffer."""
    good = encoded(envelope())
    lie = with_offset(good, 4, 300, 300 * 11 + 1)
    path = planted(tmp_path, lie)
    assert [b.problem != "" for b in dump_segment(path).batches] == [False, True, False, False]
