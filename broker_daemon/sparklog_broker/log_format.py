"""The broker's log on stderr or in `log.file`: lines of text or, with `log.format=json`, one JSON object per line.

An object has `time` (ISO 8601, UTC, milliseconds), `level`, `logger`, `thread`, `event` and `message`. `event` is the
same for all lines of one kind: the text before its values are inserted, or a name from the caller. `extra={"fields":
{…}}` adds keys; `exception` has an exception's traceback. No line contains records.

Messages contain names that clients choose. So that a name cannot forge a line, both formatters escape line ends,
control characters and marks of text direction. In the text format, a traceback follows its line, indented.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from datetime import UTC, datetime
from io import TextIOBase
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple

import msgspec

from sparklog.errors import one_line

TEXT, JSON = "text", "json"
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
VALUE_CHARS_MAX = 16 * 1024
"""Length in characters at which a message or traceback is cut."""


_INDENT = "    "


class TextFormatter(logging.Formatter):
    """Formats lines of text."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        record.message = one_line(_cut(record.getMessage()))
        record.asctime = self.formatTime(record)
        line = self.formatMessage(record)
        if not record.exc_info:
            return line
        traceback = _cut(self.formatException(record.exc_info)).split("\n")
        return "\n".join([line, *(_INDENT + one_line(part) for part in traceback)])


class JsonFormatter(logging.Formatter):
    """Formats JSON objects."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "event": _cut(str(record.msg)),
            "message": _cut(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info))
        text = self._encoder.encode(line).decode()
        return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _cut(text: str) -> str:
    """Cut a text at VALUE_CHARS_MAX, and escape characters that cannot be encoded as UTF-8. File names can have such
    characters."""
    text = text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
    return text if text.isprintable() else text.encode(errors="backslashreplace").decode()


class LogFile(NamedTuple):
    """The file of `log.file`, and the limits of its size and number."""

    path: Path
    """Path of the file. Older files have this name with a number."""
    max_bytes: int = 0
    """Size in bytes at which a new file begins; 0 for no limit."""
    backups: int = 0
    """Number of older files that are kept."""


class RolledFile(RotatingFileHandler):
    """A log file that is replaced at its largest size, or after another program has renamed or removed it."""

    def __init__(self, file: LogFile) -> None:
        """Open the file. Raises OSError."""
        file.path.parent.mkdir(parents=True, exist_ok=True)
        # without backups the library never begins a new file; `doRollover` then empties the old one
        super().__init__(
            file.path, maxBytes=file.max_bytes, backupCount=file.backups, encoding="utf-8", errors="backslashreplace"
        )

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and self._has_moved(self.stream):
            self.stream.close()
            self.stream = self._open()
        super().emit(record)

    def _has_moved(self, stream: TextIOBase) -> bool:
        try:
            present, ours = Path(self.baseFilename).stat(), os.fstat(stream.fileno())
        except (OSError, ValueError):
            return True
        return (present.st_dev, present.st_ino) != (ours.st_dev, ours.st_ino)

    def doRollover(self) -> None:  # noqa: N802 - the library's name
        if self.backupCount:
            super().doRollover()
        elif self.stream is not None:
            self.stream.truncate(0)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Write the line to standard error if the file cannot be written: a full disk must not hide its own report."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")


def set_up_logging(level: str = "INFO", log_format: str = TEXT, file: LogFile | None = None) -> None:
    """Write log lines in the form `log_format` (TEXT or JSON) to `file`; None for stderr. Raises OSError if the file
    cannot be opened."""
    handler = logging.StreamHandler(sys.stderr) if file is None else RolledFile(file)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
