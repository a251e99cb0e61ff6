"""The intact batches in a damaged partition directory, and the bad bytes between them. This module only reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import File, FileSystem, read_whole
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_OFFSET_COLUMN,
    HEADER_READ_BYTES,
    BatchHeader,
    TruncatedBatchError,
    verify_batch,
)
from sparklog.format.checkpoint import (
    PARTITION_FILE,
    PartitionMeta,
    decode,
)
from sparklog.format.offset_column import has_offset_column, topic_schema, with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.segment import (
    END_OF_STREAM,
    HEAD_MAGIC,
    SegmentHead,
    SegmentInfo,
    decode_head,
    decode_seal,
    encode_head,
    encode_seal,
    next_intact_batch,
    parse_segment_name,
    read_header,
    segment_name,
)
from sparklog.log.segments.stored_rows import RowsCheck


class KeptBatch(Struct):
    """An intact batch, and the base offset that it gets."""

    position: int
    header: BatchHeader
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


class ScannedSegment(Struct):
    """One segment file. `head`: None if the head cannot be read and cannot be derived from other segments."""

    base: int
    path: Path
    size: int
    head: SegmentHead | None
    kept: list[KeptBatch] = field(default_factory=list)
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    """Ranges of bad bytes, as (start, end, reason). The range is empty for a batch with only a wrong offset."""
    needs_rewrite: bool = False


class DirectoryScan:
    """The segments of one partition directory, in order. The constructor reads all of them, and raises LogCorruptError
    for a fault that cannot be repaired, StorageError."""

    def __init__(self, directory: Path, files: FileSystem, schema_of: Callable[[int], pa.Schema] | None) -> None:
        self._directory = directory
        self._files = files
        self._schema_of = schema_of
        self.meta = self._read_meta()
        names = files.list_directory(directory)
        bases = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
        self.segments = [self._examine(base, is_last=base == bases[-1]) for base in bases]
        self._complete_heads()
        for segment in self.segments:
            self._take_out_unreadable(segment)

    def _read_meta(self) -> PartitionMeta | None:
        data = read_whole(self._files, self._directory / PARTITION_FILE)
        return decode(data, PartitionMeta) if data is not None else None

    def _examine(self, base: int, *, is_last: bool) -> ScannedSegment:
        path = self._directory / segment_name(base)
        file = self._files.open(path)
        try:
            size = file.size()
            segment = ScannedSegment(base, path, size, None)
            position = len(HEAD_MAGIC)
            try:
                segment.head = decode_head(file.read)
                position = segment.head.data_position
            except (TruncatedBatchError, LogCorruptError) as e:
                first = next_intact_batch(file.read, 0, size) if size > 16 else None
                position = size if first is None else first
                segment.bad.append((0, position, f"the head: {e}"))
                segment.needs_rewrite = True
            blocks = decode_seal(file.read, size)
            end = blocks.data_end if blocks is not None else size
            for start, stop, piece in _pieces(file, position, end, may_be_torn=is_last and blocks is None):
                if isinstance(piece, BatchHeader):
                    segment.kept.append(KeptBatch(start, piece, piece.base_offset))
                else:
                    segment.bad.append((start, stop, piece))
                    segment.needs_rewrite = True
            self._check_head(segment)
            return segment
        finally:
            file.close()

    def _check_head(self, segment: ScannedSegment) -> None:
        """Discard a readable head that does not fit the partition or the batches. Raises LogCorruptError if the segment
        seems to belong to another partition: more than one character of the head's information differs."""
        head, meta = segment.head, self.meta
        if head is None:
            return
        expected = head.info._replace(base_offset=segment.base)
        if meta is not None:
            expected = expected._replace(topic=meta.topic, topic_id=meta.topic_id, partition=meta.partition)
        if segment.kept:
            expected = expected._replace(schema_id=segment.kept[0].header.schema_id)
        if _characters_apart(repr(tuple(head.info)), repr(tuple(expected))) > 1:
            raise LogCorruptError(
                f"{segment.path} belongs to {tuple(head.info)} by its head, not to {tuple(expected)}; move it away, "
                "or restore its name"
            )
        schema = head.schema
        if self._schema_of is not None:
            with contextlib.suppress(KeyError, SparklogError):
                schema = self._schema_of(expected.schema_id)
                schema = with_offset_column(schema) if has_offset_column(head.schema) else schema
        if expected != head.info or schema != head.schema:
            segment.head = None
            segment.needs_rewrite = True
            segment.bad.insert(0, (0, head.data_position, "the head: it does not fit the partition"))

    def _complete_heads(self) -> None:
        """Give a new head to segments with batches and no usable head. Raises LogCorruptError if the schema is
        unknown."""
        heads = {s.head.info.schema_id: s.head for s in self.segments if s.head is not None}
        meta = self.meta
        for segment in self.segments:
            if segment.head is not None or not segment.kept:
                continue
            schema_id = segment.kept[0].header.schema_id
            other = heads.get(schema_id)
            try:
                schema = other.schema if other is not None else self._schema_of and self._schema_of(schema_id)
            except (KeyError, SparklogError):
                schema = None
            if schema is None or (meta is None and other is None):
                raise LogCorruptError(
                    f"{segment.path}: its head is damaged, and no other file has schema {schema_id}; restore the file "
                    f"from a copy"
                )
            owner = PartitionMeta(*other.info[:3]) if other is not None else meta
            assert owner is not None
            if segment.kept[0].header.attributes & ATTRIBUTE_OFFSET_COLUMN and not has_offset_column(schema):
                schema = with_offset_column(schema)
            info = SegmentInfo(owner.topic, owner.topic_id, owner.partition, segment.base, schema_id)
            segment.head = SegmentHead(schema, info, len(encode_head(schema, info)))

    def _take_out_unreadable(self, segment: ScannedSegment) -> None:
        """Discard batches with a valid checksum that no reader can decode. Raises LogCorruptError if no batch can be
        decoded, because the schema in the head can be wrong instead."""
        if segment.head is None:
            return
        rows = RowsCheck(segment.head.schema)
        unreadable: dict[int, str] = {}
        file = self._files.open(segment.path)
        try:
            for kept in segment.kept:
                misfit = rows.misfit(file.read(kept.position, kept.header.size_bytes), kept.header)
                if misfit is not None and not misfit.is_unknown:
                    unreadable[kept.position] = misfit.message
        finally:
            file.close()
        if not unreadable:
            return
        if len(unreadable) == len(segment.kept) and not self._is_certain(segment, segment.head):
            raise LogCorruptError(
                f"{segment.path}: no batch fits the schema in its head, and it is unclear if the head or the batches "
                "are wrong; start and stop the broker: then the file's footer also has the schema"
                f" ({next(iter(unreadable.values()))})"
            )
        for kept in segment.kept:
            if kept.position in unreadable:
                end = kept.position + kept.header.size_bytes
                segment.bad.append((kept.position, end, unreadable[kept.position]))
        segment.bad.sort()
        segment.kept = [kept for kept in segment.kept if kept.position not in unreadable]
        segment.needs_rewrite = True

    def _is_certain(self, segment: ScannedSegment, head: SegmentHead) -> bool:
        """Return True if another source (`schema_of`, another segment, the footer) confirms the schema in the head,
        which has no checksum."""
        others = [s.head for s in self.segments if s is not segment and s.head is not None]
        if (
            self._schema_of is not None
            or topic_schema(head.schema).equals(ENVELOPE_SCHEMA)
            or any(o.info.schema_id == head.info.schema_id and o.schema == head.schema for o in others)
        ):
            return True
        file = self._files.open(segment.path)
        try:
            seal = decode_seal(file.read, segment.size)
            if seal is None:
                return False
            footer = encode_seal(head.schema, head.info, seal.positions, seal.metadata_lengths, seal.data_end)
            return file.read(seal.data_end, segment.size - seal.data_end) == footer
        finally:
            file.close()


def _characters_apart(a: str, b: str) -> int:
    """Return the number of places at which two texts differ. Texts of different lengths, which a flipped bit cannot
    cause, count as wholly different."""
    return sum(x != y for x, y in zip(a, b, strict=True)) if len(a) == len(b) else len(a) + len(b)


def _pieces(file: File, position: int, end: int, *, may_be_torn: bool) -> Iterator[tuple[int, int, BatchHeader | str]]:
    """Yield (start, end, header) of each intact batch in [position, end), and (start, end, reason) of the bad bytes
    between batches.

    Bytes at the end that a crash can have left, of the last append (`may_be_torn`) or of a footer, are left out: the
    next start cuts them off.
    """
    while position < end:
        head = file.read(position, min(HEADER_READ_BYTES, end - position))
        try:
            if head[: len(END_OF_STREAM)] == END_OF_STREAM:
                raise CorruptBatchError("an end-of-stream mark in the middle")
            header = read_header(file.read, position, end, head)
            verify_batch(file.read(position, header.size_bytes), 0, header)
        except CorruptBatchError as e:
            following = next_intact_batch(file.read, position, end)
            if following is None and (may_be_torn or head[: len(END_OF_STREAM)] == END_OF_STREAM):
                return
            yield position, following if following is not None else end, str(e)
            if following is None:
                return
            position = following
        else:
            yield position, position + header.size_bytes, header
            position += header.size_bytes
