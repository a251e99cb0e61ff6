"""Hostile records and hostile schemas against the decoders of Avro, Protobuf and JSON with a schema.

A hostile record stands between two honest ones. It is refused alone, or it is a row that the library of its format
reads, too; the honest ones stay as they are. Small and large batches, which different code decodes, agree.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from grpc_tools import protoc

from tests.campaigns.fuzz.campaign import FINDINGS_MAX, Finding, Outcome
from tests.campaigns.fuzz.child import Child

FRAME = b"\0\0\0\0\1"
MANY = 40
"""Records of one batch that fields are decoded of at a time."""
ODD_BYTES = (
    b"\xff" * 9 + b"\1", b"\xff" * 10, b"\x80" * 9 + b"\1", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\0" * 8,
    b"\1" * 8, b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\x0b\x0c", b"\x7f", b"\xff",
)  # fmt: skip
ODD_TEXTS = (
    '"null"', '"int"', "null", "{}", "[]", "-1", "0", "1e999", "9223372036854775808", '""', '"\\u0000"', '["null","int"]',
    '{"type":"fixed","name":"F","size":2147483647}', '{"type":"bytes","logicalType":"decimal","precision":38,"scale":-1}',
    '"(a+)+$"', '{"$ref":"#"}', "true", '"R"',
)  # fmt: skip
PROTO = """syntax = "proto3"; package p; message M {
  int64 a = 1; string b = 2; repeated sint32 c = 3; map<string, N> d = 4; oneof o { bytes e = 5; double f = 6; }
  E g = 7; optional fixed64 h = 8; repeated N i = 9; uint64 j = 3000; repeated string k = 10; N l = 11;
  message N { float x = 1; repeated E y = 2; optional bool z = 3; map<int32, bytes> w = 4; } enum E { A = 0; B = 5; }
}"""
JSON_SCHEMA = json.dumps(
    {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"pattern": "^[a-z]*$"}, "c": {"items": {"type": "number"}}},
        "definitions": {"x": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/x/oneOf/0"}]}}, "additionalProperties": {"$ref": "#"},
    }
)  # fmt: skip


def avro_type(rng: Random, names: list[int], depth: int) -> tuple[Any, Callable[[], Any]]:
    """Return a random type, and a function for random values of it."""
    kind = rng.choice(["leaf", "leaf", "null", "enum", "fixed", "array", "map", "record"] if depth else ["leaf"])
    names.append(0)
    name = f"N{len(names)}"
    if kind == "leaf":
        return rng.choice(_leaves(rng))
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, lambda: rng.choice("ABC")
    if kind == "fixed":
        size = rng.randint(1, 9)
        return {"type": "fixed", "name": name, "size": size}, lambda: rng.randbytes(size)
    if kind == "record":
        fields = [(f"f{i}", *avro_type(rng, names, depth - 1)) for i in range(rng.randint(1, 4))]
        source = {"type": "record", "name": name, "fields": [{"name": f, "type": t} for f, t, _ in fields]}
        return source, lambda: {f: value() for f, _, value in fields}
    inner, value = avro_type(rng, names, depth - 1)
    if kind == "array":
        return {"type": "array", "items": inner}, lambda: [value() for _ in range(rng.randint(0, 4))]
    if kind == "map":
        return {"type": "map", "values": inner}, lambda: {f"k{i}": value() for i in range(rng.randint(0, 3))}
    if isinstance(inner, list):
        return inner, value
    return ["null", inner], lambda: rng.choice([None, value()])


def _leaves(rng: Random) -> list[tuple[Any, Callable[[], Any]]]:
    return [
        ("int", lambda: rng.randint(-(2**31), 2**31 - 1)),
        ("long", lambda: rng.choice([0, -1, 2**63 - 1, rng.getrandbits(40)])),
        ("boolean", lambda: rng.random() < 0.5),
        ("double", rng.random),
        ("float", lambda: 0.5),
        ("string", lambda: rng.choice(["", "a", "Zürich", "x" * 200])),
        ("bytes", lambda: rng.randbytes(rng.randint(0, 20))),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, lambda: rng.randint(-(10**15), 10**15)),
        ({"type": "int", "logicalType": "time-millis"}, lambda: rng.randint(0, 10**6)),
    ]


def avro_case(rng: Random) -> tuple[str, list[bytes], Callable[[bytes], bool]]:
    """Return a schema, honest payloads, and a function that is True for payloads that fastavro reads."""
    names: list[int] = []
    fields = [(f"f{i}", *avro_type(rng, names, 3)) for i in range(rng.randint(1, 5))]
    source = {"type": "record", "name": "R", "fields": [{"name": f, "type": t} for f, t, _ in fields]}
    parsed = fastavro.parse_schema(source)
    payloads = []
    for _ in range(2):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {f: value() for f, _, value in fields})
        payloads.append(out.getvalue())

    plain = fastavro.parse_schema(json.loads(json.dumps(source).replace("logicalType", "unused")))  # as numbers

    def is_read(payload: bytes) -> bool:
        data = io.BytesIO(payload)
        try:
            fastavro.schemaless_reader(data, plain, None)
        except Exception:  # noqa: BLE001  fastavro raises whatever damaged bytes lead to
            return False
        return data.tell() == len(payload)

    return json.dumps(source), payloads, is_read


@cache
def message_class() -> tuple[str, Any]:
    """Return the descriptor of PROTO in base64, and its class."""
    with TemporaryDirectory() as folder:
        Path(folder, "x.proto").write_text(PROTO)
        assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={folder}/out", f"{folder}/x.proto"]) == 0
        file = FileDescriptorSet.FromString(Path(folder, "out").read_bytes()).file[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))
    return base64.b64encode(file.SerializeToString()).decode(), kind


def protobuf_case(rng: Random) -> tuple[str, list[bytes], Callable[[bytes], bool]]:
    """Return a schema, honest payloads, and a function that is True for payloads that Python's library reads."""
    text, kind = message_class()
    payloads = []
    for _ in range(2):
        message = kind(a=rng.getrandbits(60), b=rng.choice(["", "é"]), c=[rng.getrandbits(20)], g=rng.choice([0, 5]))
        message.d["k"].x = 0.5
        message.i.add(y=[0, 5], z=True).w[3] = b"\0"
        if rng.random() < 0.5:
            message.e = rng.randbytes(4)
        message.k.extend(["a", ""])
        payloads.append(b"\0" + message.SerializeToString())

    def is_read(payload: bytes) -> bool:
        try:
            kind.FromString(payload[1:])
        except DecodeError:
            return False
        return True

    return text, payloads, is_read


def json_case(rng: Random) -> tuple[str, list[bytes], Callable[[bytes], bool]]:
    """Return a schema, honest payloads, and a function that is True for payloads that are JSON objects."""
    rows = [{"a": rng.getrandbits(50), "b": "x", "c": [0.5, None], "d": {"k": i}} for i in range(2)]

    def is_read(payload: bytes) -> bool:
        try:
            return isinstance(json.loads(payload), dict)
        except (ValueError, RecursionError):
            return False

    return JSON_SCHEMA, [json.dumps(row).encode() for row in rows], is_read


CASES = {"AVRO": avro_case, "PROTOBUF": protobuf_case, "JSON": json_case}


def damaged(rng: Random, data: bytes) -> bytes:
    """Return bytes with one to three lies."""
    hostile = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 3])):
        at = rng.randint(0, max(len(hostile) - 1, 0))
        piece = hostile[at : at + rng.randint(1, 12)]
        match rng.choice([0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6]):
            case 0 if hostile:
                hostile[at] ^= 1 << rng.randrange(8)
            case 1 if hostile:
                hostile[at] = rng.randrange(256)
            case 2:
                hostile[at:at] = rng.choice(ODD_BYTES)
            case 3:
                del hostile[at : at + rng.randint(1, 12)]
            case 4:
                hostile[at : at + len(piece)] = piece * rng.choice([2, 3, 100])
            case 5:
                hostile[at:at] = piece * rng.choice([1_000, 20_000]) if rng.random() < 0.2 else piece
            case _:
                hostile = hostile[:at]
    return bytes(hostile)


def damaged_text(rng: Random, text: str) -> str:
    """Return a schema with a lie: another value in its JSON, or other bytes of a descriptor."""
    if not text.startswith(("{", '"')):
        return base64.b64encode(damaged(rng, base64.b64decode(text))).decode()
    match rng.randrange(4):
        case 0:
            return damaged(rng, text.encode()).decode(errors="replace")
        case 1:
            depth = rng.choice([60, 500, 20_000])
            head, tail = rng.choice([('{"type":"array","items":', "}"), ("[", "]"), ('{"not":', "}")])
            return head * depth + text + tail * depth
        case 2:
            many = rng.choice([100, 5_000])
            fields = ",".join(f'{{"name":"w{i}","type":["null","R"]}}' for i in range(many))
            return f'{{"type":"record","name":"R","fields":[{fields}]}}'
        case _:
            places = [i for i, char in enumerate(text) if char in ":[,"]
            at = rng.choice(places) + 1
            end = at + len(text[at:].split(",", 1)[0])
            return text[:at] + rng.choice(ODD_TEXTS) + text[end if rng.random() < 0.7 else at :]


class SchemaTargets:
    """The two targets with their children."""

    def __init__(self, work_dir: Path) -> None:
        self._records = Child("tests.campaigns.fuzz.schema_targets:records", work_dir)
        self._texts = Child("tests.campaigns.fuzz.schema_targets:texts", work_dir)
        self.outcomes: Counter[str] = Counter()

    def problem(self, seed: int) -> str:
        """Run one case; "" if all is as it should be."""
        rng = Random(seed)
        kind = rng.choice(sorted(CASES))
        text, payloads, is_read = CASES[kind](rng)
        if rng.random() < 0.3:
            answer = self._texts.call(kind, damaged_text(rng, text), text)
            if answer.kind != "value":
                return f"{kind}: {answer.kind} {answer.text}"
            self.outcomes["refused" if answer.value[0] == "refused" else "read"] += 1
            return ""
        return self._record_problem(kind, text, payloads, damaged(rng, payloads[0]), is_read)

    def _record_problem(
        self, kind: str, text: str, payloads: list[bytes], hostile: bytes, is_read: Callable[[bytes], bool]
    ) -> str:
        first, second = (FRAME + payload for payload in payloads)
        among = [first, FRAME + hostile, second]
        found = []
        for values in ([first, second], among, [*among, *[first] * MANY]):
            answer = self._records.call(kind, text, values)
            if answer.kind != "value":
                return f"{kind} {hostile[:200].hex()}: {answer.kind} {answer.text}"
            found.append(answer.value)
        honest, few, many = found
        if honest[0] != "rows":
            return f"{kind} {text}: honest records are {honest}"
        self.outcomes["read" if few[0] == "rows" else "refused"] += 1
        if few[0] == "too large" or many[0] == "too large":
            return ""
        if few[0] == "refused":
            return "" if few[1] == many[1] == [1] else f"{kind} {hostile.hex()}: refused are {few[1]}, {many[1]}"
        if few[1] != many[1][:3] or [few[1][0], few[1][2]] != honest[1]:
            return f"{kind} {hostile.hex()}: rows {few[1]}, in a large batch {many[1][:3]}, honest {honest[1]}"
        return (
            "" if is_read(hostile) else f"{kind} {hostile.hex()} with {text}: read, but the format's library refuses it"
        )

    def close(self) -> None:
        self._records.stop()
        self._texts.stop()

    def __enter__(self) -> SchemaTargets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_schemas(seeds: Iterable[int], work_dir: Path, *, seconds: float | None = None) -> Outcome:
    """Run cases, or as many as there is time for."""
    begun, findings, cases = time.monotonic(), list[Finding](), 0
    with SchemaTargets(work_dir) as targets:
        for seed in seeds:
            cases += 1
            problem = targets.problem(seed)
            if problem:
                command = f"python -m tests.campaigns.fuzz run schemas --seed {seed}"
                findings.append(Finding("schemas", f"seed {seed}", problem[:4000], command))
            is_late = seconds is not None and time.monotonic() - begun > seconds
            if is_late or len(findings) >= FINDINGS_MAX:
                break
        outcomes = targets.outcomes
    return Outcome(cases, time.monotonic() - begun, outcomes["refused"], outcomes["read"], findings)
