"""Fetch sessions: the answers have news only, and sessions end with their connection or at the limits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.gateway.backend.fetch_sessions import PARTITION_BYTES, PARTITIONS_MAX, FetchSessions
from sparklog.gateway.handlers import fetch
from sparklog.kafka.wire.errors import Kafka
from tests.support.cases import for_each

ID = UUID(int=5)


class World:
    """A connection whose broker has `logs`: the end of each partition's log; -1 for an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sessions_max: int = 10, memory_bytes: int = 1 << 20) -> None:
        self.logs: dict[Any, int] = {}
        self.memory = MemoryBudget(memory_bytes)
        lists = MemoryBudget(1 << 20, lambda: asyncio.get_running_loop().create_future())
        gateway = SimpleNamespace(
            fetch_sessions=FetchSessions(self.memory, sessions_max), memory=SimpleNamespace(lists=lists)
        )
        self.session: Any = SimpleNamespace(fetch_session=None, gateway=gateway)
        monkeypatch.setattr(fetch, "_fetch", self._fetch)

    async def _fetch(self, session: Any, request: Any, version: int) -> Any:
        topics = []
        for t in request["topics"]:
            name = t.get("topic_id") or t["topic"]
            partitions = [self._answer(name, p["partition"], p["fetch_offset"]) for p in t["partitions"]]
            topics.append({k: v for k, v in t.items() if k != "partitions"} | {"partitions": partitions})
        return {"error_code": Kafka.NONE, "session_id": 0, "responses": topics}

    def _answer(self, name: Any, partition: int, offset: int) -> dict[str, Any]:
        end = self.logs.get((name, partition), 0)
        code = Kafka.NOT_LEADER_OR_FOLLOWER if end < 0 else Kafka.NONE
        records = [b"r"] if end > offset else []
        return {
            "partition_index": partition, "error_code": code, "high_watermark": end, "log_start_offset": 0,
            "records": records,
        }  # fmt: skip

    def ask(self, session_id: int, epoch: int, *named: tuple[Any, int, int], forgotten: Any = ()) -> Any:
        topics = [
            {"topic_id" if isinstance(t, UUID) else "topic": t, "partitions": [{"partition": p, "fetch_offset": o}]}
            for t, p, o in named
        ]
        request: Any = {"session_id": session_id, "session_epoch": epoch, "topics": topics}
        request["forgotten_topics_data"] = [{"topic": t, "partitions": [p]} for t, p in forgotten]
        return asyncio.run(fetch.fetch(self.session, request, 12))


def answered(answer: Any) -> list[tuple[Any, int]]:
    assert not answer["error_code"], answer
    return [
        (t.get("topic_id") or t["topic"], p["partition_index"]) for t in answer["responses"] for p in t["partitions"]
    ]


def test_only_partitions_with_news_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    first = world.ask(0, 0, ("a", 0, 0), ("b", 0, 0), ("b", 1, 0))
    assert answered(first) == [("a", 0), ("b", 0), ("b", 1)], "all of them in the first answer"
    session_id = first["session_id"]
    assert session_id > 0
    assert answered(world.ask(session_id, 1)) == []
    world.logs["b", 0] = 3
    assert answered(world.ask(session_id, 2)) == [("b", 0)]
    assert answered(world.ask(session_id, 3)) == [("b", 0)], "the records are still unread"
    assert answered(world.ask(session_id, 4, ("b", 0, 3))) == []
    world.logs["a", 0] = -1
    assert answered(world.ask(session_id, 5)) == [("a", 0)]
    assert answered(world.ask(session_id, 6)) == [("a", 0)], "an error is repeated"
    world.logs["a", 0] = 0
    assert answered(world.ask(session_id, 7)) == [("a", 0)], "the error is over"
    assert answered(world.ask(session_id, 8, ("c", 0, 0), forgotten=[("b", 0), ("b", 1)])) == [("c", 0)]
    assert len(world.session.fetch_session) == 2
    assert world.memory.used_bytes == 2 * PARTITION_BYTES


def test_partitions_with_records_give_place_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.logs |= {("a", 0): 1, ("b", 0): 1}
    session_id = world.ask(0, 0, ("a", 0, 0), ("b", 0, 1))["session_id"]
    assert answered(world.ask(session_id, 1, ("b", 0, 0))) == [("b", 0), ("a", 0)]


@for_each(
    "case",
    [
        (lambda i: (i + 1, 1), Kafka.FETCH_SESSION_ID_NOT_FOUND),
        (lambda i: (0, 1), Kafka.FETCH_SESSION_ID_NOT_FOUND),
        (lambda i: (i, 2), Kafka.INVALID_FETCH_SESSION_EPOCH),
        (lambda i: (i, 1, (ID, 0, 0)), Kafka.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_requests_out_of_order_are_refused(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request, code = case
    world = World(monkeypatch)
    session_id = world.ask(0, 0, ("a", 0, 0))["session_id"]
    answer = world.ask(*request(session_id))
    assert (answer["error_code"], answer["responses"]) == (code, [])
    assert answered(world.ask(session_id, 1)) == [], "the session goes on"


def test_topics_are_named_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    session_id = world.ask(0, 0, (ID, 0, 0))["session_id"]
    world.logs[ID, 0] = 1
    assert answered(world.ask(session_id, 1)) == [(ID, 0)]


def test_a_session_ends_by_its_last_epoch_or_by_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, sessions_max=1)
    session_id = world.ask(0, 0, ("a", 0, 0))["session_id"]
    following = world.ask(session_id, 0, ("b", 0, 0))["session_id"]
    assert following not in (0, session_id)
    last = world.ask(following, -1, ("a", 0, 0))
    assert (last["session_id"], answered(last)) == (0, [("a", 0)])
    assert (world.session.fetch_session, world.memory.used_bytes) == (None, 0)


def test_without_room_a_client_gets_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    full = World(monkeypatch, sessions_max=0)
    answer = full.ask(0, 0, ("a", 0, 0))
    assert (answer["session_id"], answered(answer)) == (0, [("a", 0)])
    small = World(monkeypatch, memory_bytes=PARTITION_BYTES)
    assert small.ask(0, 0, ("a", 0, 0), ("a", 1, 0))["session_id"] == 0
    session_id = small.ask(0, 0, ("a", 0, 0))["session_id"]
    assert session_id > 0
    assert small.ask(session_id, 1, ("a", 1, 0))["error_code"] == Kafka.FETCH_SESSION_ID_NOT_FOUND
    assert (small.session.fetch_session, small.memory.used_bytes) == (None, 0)
    large = World(monkeypatch, memory_bytes=1 << 30)
    assert large.ask(0, 0, *(("a", p, 0) for p in range(PARTITIONS_MAX + 1)))["session_id"] == 0
