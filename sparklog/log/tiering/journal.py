"""remote-log.journal: the record of a partition's copies in the object store. A copy that is not in it does not count.

::

    offset  size  field
    0       8     magic "SLRJ\\0\\0\\0\\1"
    then records, back to back:
    0       4     length u32 of the event
    4       4     crc32c u32 of the event
    8       n     event: MessagePack map of `sparklog.log.tiering.state` (type "copy-started", "copy-finished",
                  "delete-started", "delete-finished", "local-start")

All little-endian. A record is appended and fsynced before the next step begins. A crash can only leave the last record
incomplete. It is cut off, because the step that it announces has not begun. A bad record before an intact record is
damage (LogCorruptError). The first record is written with the whole file, atomically, so no crash leaves an incomplete
beginning. If most of the file is history, it is replaced atomically by a shorter one, at a start or when it is large.

If the file is lost, the copies in the store are unknown. Every finished copy has a `manifest.json`, from which
`sparklog log restore-remote` writes the journal again. The copies of other replicas are adopted from their manifests
too (`housekeeping/adopt.py`).
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import msgspec

from sparklog.environment.files import File, FileSystem, read_whole
from sparklog.errors import LogCorruptError, SparklogError, StorageError
from sparklog.format.checksum import crc32c
from sparklog.format.decoders import msgpack_decoder
from sparklog.log.tiering.state import Event, RemoteLogState

logger = logging.getLogger(__name__)

JOURNAL_FILE = "remote-log.journal"
MAGIC = b"SLRJ\0\0\0\1"
_RECORD = struct.Struct("<II")
EVENT_BYTES_MAX = 256 * 1024 * 1024
"""Largest plausible length of an event. A copy's metadata has about a kilobyte; "local-start" has the states of all
producers."""
_REWRITE_FROM_BYTES = 64 * 1024
_REWRITE_AT_BYTES = 16 * 1024 * 1024

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Event] = msgpack_decoder(Event)  # type: ignore[arg-type]


def encode_record(event: Event) -> bytes:
    """Encode one record."""
    data = _ENCODER.encode(event)
    return _RECORD.pack(len(data), crc32c(data)) + data


def encode_journal(state: RemoteLogState) -> bytes:
    """Return the content of a journal without history whose events lead to `state`."""
    return MAGIC + b"".join(encode_record(event) for event in state.events())


def decode_journal(data: bytes) -> tuple[RemoteLogState, int]:
    """Return the state, and the position after the last intact record; the bytes after this position are torn. Raises
    LogCorruptError."""
    state = RemoteLogState()
    if len(data) < len(MAGIC) and MAGIC.startswith(data):
        return state, 0
    if not data.startswith(MAGIC):
        raise LogCorruptError("position 0: not a journal of a remote log")
    position = len(MAGIC)
    while position < len(data):
        event, size_bytes = _decode_record(data, position)
        if event is None:
            if any(_decode_record(data, p)[0] is not None for p in range(position + 1, len(data) - _RECORD.size)):
                raise LogCorruptError(f"position {position}: a damaged record, and intact records follow")
            return state, position
        try:
            state.apply(event)
        except LogCorruptError as e:
            raise LogCorruptError(f"position {position}: {e}") from e
        position += size_bytes
    return state, position


def _decode_record(data: bytes, position: int) -> tuple[Event | None, int]:
    if position + _RECORD.size > len(data):
        return None, 0
    length, checksum = _RECORD.unpack_from(data, position)
    start = position + _RECORD.size
    if not 0 < length <= min(EVENT_BYTES_MAX, len(data) - start):
        return None, 0
    event = data[start : start + length]
    if crc32c(event) != checksum:
        return None, 0
    try:
        return _DECODER.decode(event), _RECORD.size + length
    except msgspec.DecodeError:
        return None, 0


class Journal:
    """The journal in `directory`. The constructor reads the file; without a file, the state is empty. Only one thread
    at a time is allowed to append.

    Raises LogCorruptError, StorageError, StorageFullError.
    """

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self.path = directory / JOURNAL_FILE
        self._file: File | None = None
        self._closed = False
        self._end = 0
        self._rewrite_at = _REWRITE_AT_BYTES
        data = read_whole(files, self.path)
        self.state = RemoteLogState()
        self.existed = data is not None
        if data is None:
            return
        try:
            self.state, self._end = decode_journal(data)
        except LogCorruptError as e:
            raise LogCorruptError(
                f"{self.path}, {e}; restore the file from a copy, or move it away and rewrite it from the store: "
                f"sparklog log restore-remote {directory}"
            ) from e
        if self._end < len(data):
            logger.warning("%s: removed %d incomplete bytes after a crash", self.path, len(data) - self._end)
        compact = encode_journal(self.state)
        if self._end < len(data) or len(data) > max(_REWRITE_FROM_BYTES, 2 * len(compact)):
            files.write_atomic(self.path, compact)
            self._end = len(compact)

    def append(self, event: Event) -> None:
        """Append an event; it is fsynced, and in `state`, when this returns. Raises StorageError, StorageFullError
        (the event is not stored, unless only the replacement of a large file has failed), LogCorruptError (the event
        contradicts the state)."""
        if self._closed:
            raise StorageError(f"{self.path} is closed")
        self.state.check(event)
        data = encode_record(event)
        if not self._end:
            data = MAGIC + data
            self._files.write_atomic(self.path, data)
        else:
            self._write_behind(data)
        self._end += len(data)
        self.state.apply(event)
        if self._end > self._rewrite_at:
            self._rewrite()

    def _write_behind(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._files.open(self.path)
        try:
            self._file.write(self._end, data)
            self._file.sync()
        except SparklogError:
            self._file.truncate(self._end)
            raise

    def _rewrite(self) -> None:
        """Replace the file by a journal without history, if most of the file is history."""
        compact = encode_journal(self.state)
        if 2 * len(compact) < self._end and self._file is not None:
            self._file.close()
            self._file = None
            self._files.write_atomic(self.path, compact)
            self._end = len(compact)
        self._rewrite_at = max(_REWRITE_AT_BYTES, 2 * self._end)

    def close(self) -> None:
        """Close the journal: it accepts no more appends."""
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None
