"""A server that lies: it stands between a client and an honest broker and changes one answer, or all from one on.

Most frames stay valid; their content is not the broker's. The broker's statements about its own address and its Unix
socket are always changed, so clients stay here.
"""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec

from sparklog.errors import ERRORS
from sparklog.protocol.apis import Api
from sparklog.protocol.frames import PREFIX_BYTES, RESPONSE_PREFIX, encode_response
from tests.campaigns.fuzz.cases import make_case

_LONGEST_S = 3.0
"""A silent server is silent for so long; clients are told to wait for less."""
HOSTILE_PATHS = ("/dev/zero", "/proc/self/mem", "/", "", "../../etc/passwd", "\0", "a" * 5000, "/dev/stdin")
LIES = (
    "value", "value", "value", "value", "element", "repeated", "absent", "alien", "nested", "error", "unknown error", "garbage header", "empty header",
    "other api", "other correlation id", "shorter length", "longer length", "huge length", "header beyond", "no payload", "more payload", "hostile batch",
    "hostile batch", "hostile batch", "silence", "closed", "half", "trickle", "twice",
)  # fmt: skip


class Answer(NamedTuple):
    """A response frame taken apart."""

    api: int
    code: int
    correlation_id: int
    header: bytes
    payload: bytes

    def encoded(self) -> bytes:
        return encode_response(self.api, self.code, self.correlation_id, self.header, len(self.payload)) + self.payload


class Plan(NamedTuple):
    """Which answer of which API is changed, and how. `only_once`: else all that follow, too."""

    seed: int
    api: Api
    lie: str
    number: int
    only_once: bool

    @property
    def name(self) -> str:
        return f"seed {self.seed}: answer {self.number} to {self.api.name}{'' if self.only_once else ' and all after it'}: {self.lie}"


ASKED = (
    Api.HANDSHAKE, Api.METADATA, Api.METADATA, Api.FETCH, Api.FETCH, Api.FETCH, Api.LIST_OFFSETS, Api.LOCATE_SEGMENTS, Api.PRODUCE, Api.PRODUCE,
    Api.INIT_PRODUCER_ID, Api.LIST_GROUPS, Api.DESCRIBE_GROUPS, Api.GROUP_HEARTBEAT, Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.END_TXN,
    Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS, Api.SNAPSHOT_OFFSETS,
)  # fmt: skip


def make_plan(seed: int) -> Plan:
    rng = Random(f"server {seed}")
    return Plan(seed, rng.choice(ASKED), rng.choice(LIES), rng.choice([0, 0, 1, 2]), rng.random() < 0.5)


class HostileServer:
    """Serves one plan after the other on its own port: `begin(plan)`."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._plan = Plan(0, Api.HANDSHAKE, "", 1 << 30, True)
        self._counts: dict[int, int] = {}
        self.lied = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def begin(self, plan: Plan) -> None:
        with self._lock:
            self._plan, self._counts, self.lied = plan, {}, 0

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError), socket.create_connection(self._upstream) as broker:
            threading.Thread(target=_copy, args=(client, broker), daemon=True).start()
            while True:
                answer = _read_answer(broker)
                answer = _ours(answer, self.port)
                plan = self._due(answer.api)
                for piece in [answer.encoded()] if plan is None else self._lies(plan, answer):
                    client.sendall(piece)

    def _due(self, api: int) -> Plan | None:
        with self._lock:
            number = self._counts.get(api, 0)
            self._counts[api] = number + 1
            plan = self._plan
            due = api == plan.api and (number == plan.number or (number > plan.number and not plan.only_once))
            self.lied += due
            return plan if due else None

    @staticmethod
    def _lies(plan: Plan, answer: Answer) -> Iterator[bytes]:
        rng = Random(f"lie {plan.seed}")
        whole = answer.encoded()
        prefix, body = whole[:PREFIX_BYTES], whole[PREFIX_BYTES:]
        length, header_bytes = len(whole) - 4, len(answer.header)
        if plan.lie == "silence":
            time.sleep(_LONGEST_S)
            raise EOFError
        if plan.lie == "closed":
            raise EOFError
        if plan.lie == "half":
            yield whole[: rng.randrange(len(whole))]
            raise EOFError
        if plan.lie == "trickle":
            for i in range(min(len(whole), 30)):
                yield whole[i : i + 1]
                time.sleep(_LONGEST_S / 30)
            raise EOFError
        if plan.lie in (
            "shorter length",
            "longer length",
            "huge length",
            "header beyond",
            "other correlation id",
            "other api",
        ):
            fields = list(RESPONSE_PREFIX.unpack(prefix))
            fields[0] = {
                "shorter length": max(12, length - 1),
                "longer length": length + 100,
                "huge length": 2**32 - 1,
            }.get(plan.lie, length)
            fields[4] = (
                rng.choice([header_bytes + 1, 2**31, 2**32 - 1]) if plan.lie == "header beyond" else header_bytes
            )
            fields[3] += plan.lie == "other correlation id"
            fields[1] = rng.choice([0, 1, 5, 99]) if plan.lie == "other api" else fields[1]
            yield RESPONSE_PREFIX.pack(*fields) + body
            return
        if plan.lie == "twice":
            yield whole + whole
            return
        yield _changed(plan.lie, answer, rng).encoded()


def _changed(lie: str, answer: Answer, rng: Random) -> Answer:
    """The answer with another content."""
    if lie in ("error", "unknown error"):
        code = rng.choice(list(ERRORS)) if lie == "error" else rng.choice([-32768, -2, 77, 32767])
        text = rng.choice(["", "as told", "x" * 100_000])
        return answer._replace(code=code, header=msgspec.msgpack.encode([text]), payload=b"")
    if lie == "garbage header":
        return answer._replace(header=bytes(rng.randrange(256) for _ in range(rng.choice([1, 40, 5000]))))
    if lie == "empty header":
        return answer._replace(header=b"")
    if lie == "no payload":
        return answer._replace(payload=b"")
    if lie == "more payload":
        return answer._replace(payload=answer.payload + bytes(rng.choice([1, 100, 1 << 20])))
    if lie == "hostile batch" and answer.payload:
        data = make_case(rng.randrange(1 << 40)).stamped()
        return _with_payload(answer, data)
    content = msgspec.msgpack.decode(answer.header)
    return answer._replace(header=msgspec.msgpack.encode(_mutated(content, lie, rng)))


def _with_payload(answer: Answer, data: bytes) -> Answer:
    """A fetch's answer whose data are others, all lengths right."""
    content = msgspec.msgpack.decode(answer.header)
    for i, result in enumerate(content[0]):
        result[6] = len(data) if not i else 0
    return answer._replace(header=msgspec.msgpack.encode(content), payload=data)


def _mutated(content: Any, lie: str, rng: Random) -> Any:
    """One place of a decoded header is changed."""
    content = copy.deepcopy(content)
    places = list(_places(content))
    if not places:
        return content
    container, key = rng.choice(places)
    value = container[key]
    lists = [(c, k) for c, k in places if isinstance(c[k], list)]
    if lie in ("element", "repeated", "absent") and lists:
        container, key = rng.choice(lists)
        value = container[key]
        if lie == "repeated":
            container[key] = (value or [0]) * rng.choice([2, 1000])
        elif lie == "absent":
            container[key] = value[: rng.randrange(len(value))] if value else None
        else:
            container[key] = [*value, value[0] if value else 0]
    elif lie == "nested":
        deep: Any = []
        for _ in range(rng.choice([100, 900])):
            deep = [deep]
        container[key] = deep
    elif lie == "alien":
        container[key] = rng.choice([None, "text", b"\xff", 1.5, {"k": 1}, [], -1, True])
    elif isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int):
        container[key] = rng.choice(
            [-1, 0, 1, value + 1, value - 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, value * 1000]
        )
    elif isinstance(value, str):
        container[key] = rng.choice([*HOSTILE_PATHS, value + "x", "localhost", "255.255.255.255"])
    elif isinstance(value, bytes):
        damaged = bytearray(value)
        for _ in range(rng.choice([1, 1, 8])):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        container[key] = rng.choice([bytes(damaged), b"", value[: len(value) // 2]])
    else:
        container[key] = rng.choice([None, 0, "", [], 2**63 - 1])
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a decoded message."""
    keys = range(len(content)) if isinstance(content, list) else list(content) if isinstance(content, dict) else ()
    for key in keys:
        yield content, key
        yield from _places(content[key])


def _ours(answer: Answer, port: int) -> Answer:
    if answer.code:
        return answer
    if answer.api == Api.HANDSHAKE:
        content = msgspec.msgpack.decode(answer.header)
        content[5] = ""
        return answer._replace(header=msgspec.msgpack.encode(content))
    if answer.api == Api.METADATA:
        content = msgspec.msgpack.decode(answer.header)
        for broker in content[2]:
            broker[2] = port
        return answer._replace(header=msgspec.msgpack.encode(content))
    return answer


def _read_answer(broker: socket.socket) -> Answer:
    length, api, code, correlation_id, header_bytes = RESPONSE_PREFIX.unpack(_read(broker, PREFIX_BYTES))
    body = _read(broker, length - PREFIX_BYTES + 4)
    return Answer(api, code, correlation_id, body[:header_bytes], body[header_bytes:])


def _read(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = source.recv(min(1 << 20, count - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 20):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
