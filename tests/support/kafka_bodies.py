"""Bodies of Kafka's requests: one that is valid for each API, and the same with one unusual value in one field."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from uuid import UUID

from sparklog.kafka.wire.schema import REQUEST, Field, messages
from tests.support.kafka_wire import batch_of_values

TOPIC = "walk"
"""Name in each text of the bodies: a topic, a group, a transactional id."""
TEXTS = (
    "", "\t", "a\tb", "\ufeff", "\u202e", "\0", "é" * 100, "x" * 250, "x" * 2_000, "x" * 30_000, "../b",
    "__consumer_offsets", "__transaction_state", "__other", "%s{0}",
)  # fmt: skip
OCTETS = (b"", b"x", bytes(70_000), bytes(range(256)))
NUMBERS = {
    "int8": (-128, -1, 1, 2, 127),
    "int16": (-(2**15), -1, 1, 2**15 - 1),
    "uint16": (1, 2**16 - 1),
    "int32": (-(2**31), -2, -1, 1, 100_000, 2**31 - 1),
    "int64": (-(2**63), -3, -1, 1, 2**63 - 1),
}
_PLAIN = {"acks": -1, "producer_id": -1, "num_partitions": 1, "count": 1, "replication_factor": 1, "resource_type": 2}
_MS, _SESSION_MS, _BYTES = 300, 6_000, 1 << 20

Path = tuple[str | int, ...]


def plain_body(name: str, version: int) -> dict[str, Any]:
    """Return a body of an API with usual values."""
    return _structure(messages()[REQUEST, name].fields, version)


def unusual_bodies(name: str, version: int) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield bodies with an unusual value in one field: the field's path, the value, and the body."""
    plain = plain_body(name, version)
    for path, value in _changes(messages()[REQUEST, name].fields, version, ()):
        body: Any = deepcopy(plain)
        place = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        yield ".".join(map(str, path)), value, body


def _structure(fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    present = [f for f in fields if version in f.versions]
    return {f.name: [_value(f, version)] if f.is_list else _value(f, version) for f in present}


def _value(field: Field, version: int) -> Any:
    kind, name = field.type, field.name
    if kind == "{}":
        return _structure(field.fields, version)
    if kind in NUMBERS:
        if "timeout" in name or "max_wait" in name:
            return _SESSION_MS if "session" in name else _MS
        return _BYTES if "max_bytes" in name else _PLAIN.get(name, 0)
    plain = {"string": TOPIC, "bool": False, "float64": 0.0, "uuid": UUID(int=0), "bytes": b"x"}
    return [batch_of_values([b"v"])] if kind == "records" else plain[kind]


def _changes(fields: tuple[Field, ...], version: int, before: Path) -> Iterator[tuple[Path, Any]]:
    for field in (f for f in fields if version in f.versions):
        path = (*before, field.name)
        if field.null is not None and version in field.null:
            yield path, None
        if field.type == "{}":
            if field.is_list:
                yield path, []
            yield from _changes(field.fields, version, (*path, 0) if field.is_list else path)
            continue
        values: tuple[Any, ...] = {
            "string": TEXTS, "bytes": OCTETS, "records": tuple([one] for one in OCTETS), "bool": (True,),
            "uuid": (UUID(int=5),),
        }.get(field.type, NUMBERS.get(field.type, ()))  # fmt: skip
        if field.is_list:
            yield path, []
        for value in values:
            yield path, [value] if field.is_list else value


def long_bodies(name: str, version: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies in which one list, at any depth, has `count` elements: the list's path, and the body."""
    plain = plain_body(name, version)
    for path in _lists(messages()[REQUEST, name].fields, version, ()):
        body: Any = deepcopy(plain)
        place = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = place[path[-1]] * count
        yield ".".join(map(str, path)), body


def _lists(fields: tuple[Field, ...], version: int, before: Path) -> Iterator[Path]:
    for field in (f for f in fields if version in f.versions):
        path = (*before, field.name)
        if field.is_list:
            yield path
        if field.type == "{}":
            yield from _lists(field.fields, version, (*path, 0) if field.is_list else path)
