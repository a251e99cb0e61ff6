"""Requests, derived from the types of `sparklog.protocol`: a new API is fuzzed because it is in the table of APIs.

A request is valid in structure, most times; its fields are honest, at their bounds, outside, repeated, huge, nested,
or of another type. `names` are topics, groups and ids that exist, so that requests get behind the first check.
"""

from __future__ import annotations

import struct
from functools import cache
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as shapes

from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import PREFIX, PREFIX_BYTES
from sparklog.protocol.messages import ProducePartition, ProduceRequest
from tests.campaigns.fuzz.cases import SCHEMAS, make_case

REPEATED_MAX = 3000
HUGE_CHARS = 70_000
NESTED_LEVELS = 2000
PARTITIONS_MAX = 50
"""Of a topic that is made by chance: thousands would only take time."""


class Request(NamedTuple):
    """A frame as it is sent. `api` is the stated one; `name` describes the content. `is_answered`: its lengths are
    right, and it requests nothing that may wait, so an answer or the connection's end comes soon."""

    seed: int
    api: int
    data: bytes
    name: str
    is_answered: bool


class Values:
    """Values for fields, from one source of randomness."""

    def __init__(self, rng: Random, names: list[str]) -> None:
        self._rng = rng
        self._names = names
        self._budget = 20_000
        """Values that may still be made: lists of lists of huge texts would only take time."""

    def of(self, shape: Any, field: str = "") -> Any:
        """A value for a type, or now and then one of another type."""
        self._budget -= 1
        if self._rng.random() < 0.01:
            return self._alien()
        if isinstance(shape, shapes.UnionType):
            return self.of(self._rng.choice(shape.types), field)
        if isinstance(shape, shapes.StructType):
            return [self.of(f.type, f.encode_name) for f in shape.fields]
        if isinstance(shape, shapes.ListType):
            return self._list(shape, field)
        if isinstance(shape, shapes.TupleType):
            items = [self.of(item, field) for item in shape.item_types]
            return items if self._rng.random() < 0.98 else items[1:]
        if isinstance(shape, shapes.DictType):
            size = self._rng.choice([0, 1, 3, 250])
            return {f"{self._text(None)[:50]}{i}": self.of(shape.value_type) for i in range(size)}
        if isinstance(shape, shapes.IntType):
            return self._int(shape, field)
        if isinstance(shape, shapes.FloatType):
            return self._rng.choice([0.0, -1.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")])
        if isinstance(shape, shapes.StrType):
            return self._text(shape.max_length)
        if isinstance(shape, shapes.BytesType):
            return self._bytes()
        if isinstance(shape, shapes.BoolType):
            return self._rng.random() < 0.5
        if isinstance(shape, shapes.NoneType):
            return None
        if isinstance(shape, shapes.AnyType):
            return self._alien()
        raise AssertionError(f"no values for {shape}: teach this class")

    def _list(self, shape: shapes.ListType, field: str) -> list[Any]:
        how = self._rng.random()
        if how < 0.08:
            return []
        if how < 0.2 and self._budget > 0:  # one element again and again
            count = self._rng.choice([2, 200, REPEATED_MAX])
            return [self.of(shape.item_type, field)] * min(count, max(1, self._budget))
        return [
            self.of(shape.item_type, field) for _ in range(self._rng.choice([1, 1, 2, 5]) if self._budget > 0 else 1)
        ]

    def _int(self, shape: shapes.IntType, field: str) -> int:
        low = -(2**63) if shape.ge is None else shape.ge
        high = 2**63 - 1 if shape.le is None else shape.le
        if field == "partitions":
            high = PARTITIONS_MAX
        if self._rng.random() < 0.03:
            return max(-(2**63), min(2**64 - 1, self._rng.choice([low - 1, high + 1])))
        near = [low, high, 0, 1, 2, 7, 1000, -1, 2**31, 2**53, (low + high) // 2]
        return max(low, min(high, self._rng.choice(near)))

    def _text(self, longest: int | None) -> str:
        how = self._rng.random()
        if how < 0.75:
            return self._rng.choice(self._names)
        longest = HUGE_CHARS if longest is None else longest
        return self._rng.choice(
            ["", "\0", "../../x", "é" * 60, "a" * min(longest, HUGE_CHARS), "a" * (longest + 1), "_" * 249, " ", "%s\n"]
        )

    def _bytes(self) -> bytes:
        schema = bytes(self._rng.choice(list(SCHEMAS.values())).serialize())
        if self._rng.random() < 0.4:
            return schema
        damaged = bytearray(schema)
        for _ in range(self._rng.choice([1, 1, 5])):
            damaged[self._rng.randrange(len(damaged))] = self._rng.randrange(256)
        return self._rng.choice([bytes(damaged), schema[: self._rng.randrange(len(schema))], b"", bytes(5000)])

    def _alien(self) -> Any:
        deep: Any = []
        if self._rng.random() < 0.1:
            for _ in range(500):
                deep = [deep]
        return self._rng.choice(
            [None, -1, 2**64 - 1, 1.5, float("nan"), "text", b"\xff\x00", True, deep, {"k": [deep]}, ["x"] * 100]
        )


@cache
def _shape(api: Api) -> shapes.StructType:
    found = shapes.type_info(APIS[api].request)
    assert isinstance(found, shapes.StructType)
    return found


def make_request(seed: int, names: list[str], topics: dict[str, int]) -> Request:
    """The request of a seed. `topics`: those that exist with their schemas' ids."""
    rng = Random(f"request {seed}")
    api = rng.choice(list(Api))
    if api is Api.PRODUCE and rng.random() < 0.8:
        return _produce(seed, rng, topics)
    header = msgspec.msgpack.encode(Values(rng, names).of(_shape(api)))
    payload = b"" if rng.random() < 0.9 else bytes(rng.randrange(256) for _ in range(rng.choice([1, 100, 5000])))
    return _framed(seed, rng, api, header, payload, api.name)


def _produce(seed: int, rng: Random, topics: dict[str, int]) -> Request:
    """A hostile batch where batches are taken."""
    case = make_case(rng.randrange(1 << 40))
    fitting = [t for t, schema_id in topics.items() if schema_id == case.form.schema_id]
    topic = rng.choice(fitting if rng.random() < 0.95 else list(topics))
    parts = [
        ProducePartition(topic, rng.choice([0, 0, 1, 9999]), len(case.data)) for _ in range(rng.choice([1, 1, 1, 3]))
    ]
    request = ProduceRequest(rng.choice([-1, -1, 1, 0]), 10_000, parts, rng.choice([None, None, None, "txn"]))
    return _framed(seed, rng, Api.PRODUCE, encode(request), case.data * len(parts), f"PRODUCE of {case.name}")


def _framed(seed: int, rng: Random, api: Api, header: bytes, payload: bytes, name: str) -> Request:
    version = rng.choice([APIS[api].version_min, APIS[api].version_max])
    length, header_length = PREFIX_BYTES - 4 + len(header) + len(payload), len(header)
    number = int(api)
    how = rng.random()
    if how < 0.02:
        version = rng.choice([1, 65_535])
    elif how < 0.04:
        number = rng.choice([26, 39, 41, 65_535])
    elif how < 0.06:
        header_length = rng.choice([0, header_length + 1, header_length - 1, 2**31, 2**32 - 1]) & 0xFFFFFFFF
    elif how < 0.08:
        length = rng.choice([0, 11, length - 1, 2**31, 2**32 - 1])
    elif how < 0.12 and header:
        damaged = bytearray(header)
        for _ in range(rng.choice([1, 3])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        header = bytes(damaged)
    elif how < 0.14:
        levels = rng.choice([100, NESTED_LEVELS, 100_000])
        header = b"\x91" * levels + b"\xc0"
        header_length, length = len(header), PREFIX_BYTES - 4 + len(header) + len(payload)
    elif how < 0.15:
        header = struct.pack(">BI", 0xDD, 0xFFFFFFFF)  # an array of 4 billion
        header_length, length = len(header), PREFIX_BYTES - 4 + len(header) + len(payload)
    data = PREFIX.pack(length, number, version, seed & 0xFFFFFFFF, header_length) + header + payload
    waits = api is Api.FETCH or (api is Api.PRODUCE and b"\x00" in header[:4])
    whole = PREFIX_BYTES - 4 + len(header) + len(payload) == length
    return Request(seed, number, data, f"request {seed}: {name}, {len(data)} bytes", whole and not waits)
