"""The broker's log on stderr: lines to read, or (`log.format=json`) one JSON object per line.

A line has `time` (ISO 8601, UTC, milliseconds), `level`, `logger`, `thread`, `event` and `message`. `event` is what all
lines of one kind share: the text before its values are filled in, or a name that the caller gives. What the caller
gives as `extra={"fields": {…}}` are more keys, and an exception's traceback is in `exception`. No line holds records.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

TEXT, JSON = "text", "json"
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
VALUE_CHARS_MAX = 16 * 1024
"""A longer message or traceback is cut."""


class JsonFormatter(logging.Formatter):
    """See the module."""

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
        return self._encoder.encode(line).decode()


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def set_up_logging(level: str = "INFO", log_format: str = TEXT) -> None:
    """Log lines to stderr, from now on in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else logging.Formatter(_TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
