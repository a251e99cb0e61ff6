"""Converts the fields of the form for a record to the arguments of the producer."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.json_rows import JsonRows

FORMS = ("text", "hex", "null")
"""Notations of an envelope's key and value in the form. The value null is a tombstone."""
_HEADER = re.compile(r"([^:]+):\s?(.*)")


class EnvelopeRecord(NamedTuple):
    """A record of an envelope topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def envelope_record(fields: Mapping[str, str]) -> EnvelopeRecord:
    """Return the record of a form's fields. An empty text as key means no key. Raises InvalidRequestError."""
    key_form = fields.get("key_form") or "text"
    is_keyless = key_form == "text" and not fields.get("key")
    return EnvelopeRecord(
        None if is_keyless else _content(fields, "key", key_form),
        _content(fields, "value", fields.get("value_form") or "text"),
        _headers(fields.get("headers", "")),
    )


def _content(fields: Mapping[str, str], name: str, form: str) -> bytes | None:
    text = fields.get(name, "")
    if form == "null":
        if text:
            raise InvalidRequestError(f"{name}: null has no content; empty the field, or choose text")
        return None
    if form == "hex":
        try:
            return binascii.unhexlify("".join(text.split()))
        except (binascii.Error, ValueError) as e:
            raise InvalidRequestError(f"{name} = {text[:80]!r}: write hex as pairs of 0 to 9 and a to f ({e})") from e
    if form != "text":
        raise InvalidRequestError(f"{name}_form = {form!r}: use one of {', '.join(FORMS)}")
    return text.replace("\r\n", "\n").encode()  # browsers send line ends of a form as \r\n


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _HEADER.fullmatch(line)
        if match is None:
            raise InvalidRequestError(f"header {line[:80]!r}: write NAME: VALUE, one in a line")
        headers.append((match[1].strip(), match[2].encode()))
    return headers


def typed_row(text: str, schema: pa.Schema) -> pa.Table:
    """Return a table with the row that `text` has as a JSON object. Raises InvalidRequestError."""
    try:
        return pa.Table.from_batches([JsonRows(schema).read([text.encode()])])
    except ValueError as e:  # also for halves of surrogate pairs
        raise InvalidRequestError(f"the row cannot be read as a JSON object of the topic's columns: {e}") from e


def row_example(schema: pa.Schema) -> str:
    """Return a JSON object with null for each column, to be completed by the user."""
    return json.dumps(dict.fromkeys(schema.names), indent=2, ensure_ascii=False)


def partition_of(fields: Mapping[str, str], partitions: int) -> int | None:
    """Return the partition of the form; None if the producer chooses it. Raises InvalidRequestError."""
    text: Any = fields.get("partition", "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) >= partitions:
        raise InvalidRequestError(f"partition = {text[:80]!r}: the topic has partitions 0 to {partitions - 1}")
    return int(text)
