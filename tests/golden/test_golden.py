"""The code writes the committed bytes, and reads them."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import UnsupportedVersionError
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    decode_batch,
    decode_header,
    iterate_batches,
    verify_batch,
)
from sparklog.format.offset_index import decode_offset_index
from sparklog.format.producer_snapshot import decode_snapshot
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.segment import ScanEnd, decode_head, decode_seal, scan
from sparklog.format.time_index import decode_time_index
from sparklog.format.txn_index import decode_txn_index
from sparklog.log.tiering.journal import decode_journal
from sparklog.protocol import messages as m
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message, Since
from sparklog.protocol.codec import decode_error, decode_error_body, decode_request, decode_response
from sparklog.protocol.frames import PREFIX_BYTES, decode_request_prefix, decode_response_prefix
from sparklog.protocol.versions import field_names, forget_newer, newest_field_version
from tests.golden import api_fields
from tests.golden import make_golden as golden
from tests.support.cases import for_each

NAMES = sorted(golden.golden_files())


def committed(name: str) -> bytes:
    return (golden.DATA / name).read_bytes()


@for_each("name", NAMES)
def test_bytes_are_pinned(name: str) -> None:
    assert golden.golden_files()[name] == committed(name)


def test_check_detects_superfluous_and_missing_files() -> None:
    assert golden.differences() == []


def test_check_mode_reports_a_difference(tmp_path: Path) -> None:
    script = Path(golden.__file__)
    copy = tmp_path / script.name
    copy.write_bytes(script.read_bytes())
    subprocess.run([sys.executable, copy], check=True)
    (tmp_path / "data" / "batch-envelope.bin").write_bytes(b"x")
    (tmp_path / "data" / "batch-typed.bin").unlink()
    (tmp_path / "data" / "stray.bin").write_bytes(b"")
    result = subprocess.run([sys.executable, copy, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "batch-typed.bin: missing",
        "stray.bin: nothing makes it",
        "batch-envelope.bin: differs",
    ]


@pytest.mark.parametrize(
    ("name", "rows", "base_offset"),
    [("batch-envelope.bin", golden.envelope_rows(100, 4), 100), ("batch-typed.bin", golden.typed_rows(0, 5), 0)],
)
def test_committed_batch_decodes(name: str, rows: pa.RecordBatch, base_offset: int) -> None:
    data = committed(name)
    header = decode_header(data)
    verify_batch(data, 0, header)
    assert decode_batch(data, rows.schema).equals(rows)
    assert header.size_bytes == len(data)
    assert (header.base_offset, header.next_offset) == (base_offset, base_offset + rows.num_rows)
    assert (header.leader_epoch, header.append_time_ms, header.schema_id) == (3, golden.BASE_MS + 5_000, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, base_offset)
    assert header.max_timestamp_ms - header.min_timestamp_ms == rows.num_rows - 1


@pytest.mark.parametrize(
    ("name", "schema", "rows"),
    [
        ("segment-envelope.arrow", ENVELOPE_SCHEMA, golden.envelope_rows(100, 12)),
        ("segment-typed.arrow", golden.TYPED_SCHEMA, golden.typed_rows(0, 10)),
        ("segment-empty.arrow", ENVELOPE_SCHEMA, golden.envelope_rows(0, 0)),
        ("segment-marker.arrow", ENVELOPE_SCHEMA, golden.envelope_rows(100, 12)),
    ],
)
def test_committed_segment_decodes(name: str, schema: pa.Schema, rows: pa.RecordBatch) -> None:
    data = committed(name)

    def read(position: int, size: int) -> bytes:
        return data[position : position + size]

    head = decode_head(read)
    assert head.schema == schema
    assert (head.info.partition, head.info.schema_id) == (2, 1)
    seal = decode_seal(read, len(data))
    assert seal is not None
    found: list[int] = []
    result = scan(
        read, head.data_position, len(data), lambda at, _: found.append(at), next_offset=head.info.base_offset
    )
    assert (result.end, result.position) == (ScanEnd.END, seal.data_end)
    assert found == seal.positions.tolist()
    assert [at for at, _ in iterate_batches(data[head.data_position : seal.data_end])] == [
        at - head.data_position for at in found
    ]
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    assert table.replace_schema_metadata(None).equals(pa.Table.from_batches([rows]))


@pytest.mark.parametrize(("api", "version"), api_fields.versions(), ids=lambda v: getattr(v, "name", v))
def test_committed_frames_decode(api: Api, version: int) -> None:
    name = golden.frame_name(api, version)
    sent: Message = golden.REQUESTS[api]
    answered: Message = golden.RESPONSES[api]
    data = committed(f"{name}-request.bin")
    request = decode_request_prefix(data, 1 << 20)
    assert (request.api, request.version, request.correlation_id) == (api, version, 1000 + api)
    assert len(data) == PREFIX_BYTES + request.body_bytes
    header = data[PREFIX_BYTES : PREFIX_BYTES + request.header_bytes]
    assert len(msgspec.msgpack.decode(header)) == len(field_names(type(sent), version))
    assert decode_request(request.api, request.version, header) == as_of(sent, version)
    assert data[PREFIX_BYTES + request.header_bytes :] == golden.PAYLOADS.get(api, (b"", b""))[0]

    data = committed(f"{name}-response.bin")
    response = decode_response_prefix(data, 1 << 20)
    assert (response.api, response.error_code, response.correlation_id) == (api, 0, 1000 + api)
    assert len(data) == PREFIX_BYTES + response.body_bytes
    header = data[PREFIX_BYTES : PREFIX_BYTES + response.header_bytes]
    assert len(msgspec.msgpack.decode(header)) == len(field_names(type(answered), version))
    assert decode_response(api, header, type(answered)) == as_of(answered, version)
    assert data[PREFIX_BYTES + response.header_bytes :] == golden.PAYLOADS.get(api, (b"", b""))[1]


def as_of(message: Message, version: int) -> Message:
    """The message as a peer of a version knows it."""
    known = copy.deepcopy(message)
    forget_newer(known, version)
    return known


def test_committed_version_error_decodes() -> None:
    data = committed("error-version-response.bin")
    assert decode_response_prefix(data, 1 << 20).error_code == UnsupportedVersionError.code
    body = decode_error_body(data[PREFIX_BYTES:])
    assert (body.version_min, body.version_max) == (0, 2)


def test_committed_error_of_a_throttled_request_decodes() -> None:
    body = decode_error_body(committed("error-throttled-response.bin")[PREFIX_BYTES:])
    assert (body.message, body.version_max, body.throttle_ms) == ("no topic 'x'", -1, 1_000)


def test_no_api_changes_without_a_new_version_or_a_recorded_reason() -> None:
    assert api_fields.differences() == []


class Changed(m.DeleteRecordsResponse):
    more: int = 0


class WithNewField(m.DeleteRecordsResponse):
    more: Annotated[int, Since(1)] = 0


def test_a_changed_field_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = APIS[Api.DELETE_RECORDS]
    monkeypatch.setitem(APIS, Api.DELETE_RECORDS, spec._replace(response=Changed))
    found = api_fields.differences()
    assert len(found) == spec.version_max + 1
    assert found[0].startswith(
        "delete-records-v0: its fields have changed: give the API a new version, or record why not"
    )
    monkeypatch.setitem(APIS, Api.DELETE_RECORDS, spec._replace(response=WithNewField, version_max=1))
    assert api_fields.differences() == ["delete-records-v1: not kept yet, run tests/golden/api_fields.py"]


@for_each("api", Api)
def test_versions_go_up_to_the_newest_field(api: Api) -> None:
    spec = APIS[api]
    newest = max(newest_field_version(spec.request), newest_field_version(spec.response))
    assert spec.version_max == max(newest, spec.version_min), "a field came with a version that the API does not have"


def test_committed_error_frame_decodes() -> None:
    data = committed("error-response.bin")
    response = decode_response_prefix(data, 1 << 20)
    assert (response.api, response.error_code, response.correlation_id) == (Api.METADATA, 3, 7)
    assert decode_error(data[PREFIX_BYTES:]) == "no topic 'x'"


def test_committed_marker_decodes() -> None:
    data = committed("batch-marker.bin")
    header = decode_header(data)
    verify_batch(data, 0, header)
    assert (header.base_offset, header.next_offset, header.record_count, header.size_bytes) == (112, 113, 0, len(data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 1)
    assert header.attributes == ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | ATTRIBUTE_COMMIT


def test_committed_producer_files_decode() -> None:
    assert decode_snapshot(committed("producers.snapshot")) == golden.PRODUCERS
    assert decode_txn_index(committed("aborted.txnindex")) == golden.ABORTED


def test_committed_indexes_decode() -> None:
    bounds = {"base_offset": golden.INDEXED_FROM, "relative_offset_end": 12}
    positions = np.array([1000, 5000, 9000])
    offsets = decode_offset_index(committed("segment.index"), batch_positions=positions, **bounds)
    times = decode_time_index(committed("segment.timeindex"), **bounds)
    assert offsets is not None
    assert times is not None
    assert (len(offsets), offsets.last()) == (2, (8, 9000))
    assert (len(times), times.last()) == (2, (golden.BASE_MS + 8, 8))


def test_committed_journal_decodes() -> None:
    state, end = decode_journal(committed("remote-log.journal"))
    assert end == len(committed("remote-log.journal"))
    (segment,) = state.finished
    assert (segment.base_offset, segment.next_offset, state.local_start_offset) == (100, 112, 112)
    assert segment.objects["00000000000000000100.arrow"].crc32c == 0x89ABCDEF
