"""Memory and turns of many clients: no client that does not send or read delays the others for long."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.gateway import Gateway, LongRequests
from sparklog.gateway.groups.model import GROUP_BYTES, MEMBER_BYTES, Join
from sparklog.gateway.groups.runtime import EMPTIED_MAX, EMPTIED_MS, HOST_SHARE, Groups
from sparklog.gateway.handlers import fetch
from sparklog.gateway.limits import Limits
from sparklog.gateway.memory import ANSWER_SHARE, ENTRY_BYTES, GatewayMemory
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.session import FIRST_ANSWER_BYTES, INLINE_ENTRIES, ServedApi, Session
from sparklog.kafka.wire import codec
from sparklog.kafka.wire.apis import Api
from sparklog.kafka.wire.codec import Body, encoder
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import REQUEST
from sparklog.protocol.messages import FetchRequest, FetchResponse, FetchResult
from sparklog.security.listeners import SecurityProtocol
from sparklog.settings import MIB
from tests.unit.gateway.served import answer, framed, with_apis

STALL_S = 0.2
ANSWER_BYTES = 4 * MIB
"""More than the buffers of a connection's sockets take."""
VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


async def versions(session: Session, request: Body, version: int) -> Body:
    return {"error_code": 0, "api_keys": []}


async def large(session: Session, request: Body, version: int) -> Body:
    """Answer with the topics of a request, and with a large name."""
    return {"responses": [{"topic": "t", "partitions": [_partition(bytes(ANSWER_BYTES))]}]}


def _partition(records: bytes) -> Body:
    return {"partition_index": 0, "error_code": 0, "high_watermark": 0, "records": [records]}


async def produced(session: Session, request: Body, version: int) -> Body:
    return {"responses": [], "throttle_time_ms": 0}


async def metadata(session: Session, request: Body, version: int) -> Body:
    session.gateway.seen.append(len(request["topics"]))  # type: ignore[attr-defined]
    return {"brokers": [], "topics": []}


APIS = {
    0: ServedApi(Api("Produce", 0, 3, 12), produced),
    1: ServedApi(Api("Fetch", 1, 4, 12), large),
    3: ServedApi(Api("Metadata", 3, 0, 12), metadata),
    18: ServedApi(Api("ApiVersions", 18, 0, 4), versions),
}


def request_of(api: str, number: int, version: int, body: Body) -> bytes:
    head = struct.pack(">hhih", number, version, 7, -1)
    return framed(head + b"".join(bytes(part) for part in encoder(REQUEST, api, version)(body)))


FETCH = request_of("Fetch", 1, 11, {"max_wait_ms": 0, "min_bytes": 0, "topics": [], "forgotten_topics_data": []})


def produce_of(size: int) -> bytes:
    partition = {"index": 0, "records": [bytes(size)]}
    topics = [{"name": "t", "partition_data": [partition]}]
    return request_of("Produce", 0, 8, {"acks": 1, "timeout_ms": 1, "topic_data": topics})


def run(body: Any, **limits: Any) -> None:
    with_apis(body, APIS, Limits(stall_s=STALL_S, **limits), SecurityProtocol.PLAINTEXT)


def test_clients_that_do_not_read_are_disconnected_when_others_wait_for_their_memory() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        silent = [await connect(limit=1024) for _ in range(6)]
        for _, writer in silent:
            writer.write(FETCH)
        reader, writer = await connect()
        small_reader, small_writer = await connect()
        while not gateway.memory.unread.waiting_count:
            await asyncio.sleep(0.001)
        small_writer.write(framed(VERSIONS))
        assert (await answer(small_reader))[:4] == b"\0\0\0\7", "a small request waits for no large answer"
        assert gateway.memory.unread.waiting_count
        writer.write(FETCH)
        assert len(await answer(reader)) > ANSWER_BYTES
        assert gateway.slow_clients.cut_count >= 4
        assert gateway.memory.unread.used_bytes <= 3 * (ANSWER_BYTES + 1_000)
        for _, each in [*silent, (reader, writer), (small_reader, small_writer)]:
            each.close()

    run(body, unread_bytes=2 * (ANSWER_BYTES + 1_000))


def test_a_client_that_sends_slowly_is_disconnected_when_others_wait_for_its_memory() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        halves = [await connect() for _ in range(3)]
        for _, writer in halves:
            writer.write(produce_of(1_000_000)[:900_000])
        reader, writer = await connect()
        writer.write(produce_of(500_000))
        small_reader, small_writer = await connect()
        while not gateway.memory.requests.waiting_count:
            await asyncio.sleep(0.001)
        small_writer.write(produce_of(1_000))
        assert (await answer(small_reader))[:4] == b"\0\0\0\7", "a small request waits for no large one"
        assert (await answer(reader))[:4] == b"\0\0\0\7"
        assert gateway.slow_clients.cut_count >= 1
        for _, each in [*halves, (reader, writer), (small_reader, small_writer)]:
            each.close()

    run(body, memory_bytes=2_000_000)


def test_honest_clients_whose_requests_exceed_the_memory_together_are_all_answered() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        data = produce_of(1_000_000)
        streams = [await connect() for _ in range(8)]
        for start in range(0, len(data), 250_000):  # all of them in step
            for _, writer in streams:
                writer.write(data[start : start + 250_000])
            await asyncio.sleep(0.001)
        for reader, writer in streams:
            assert (await answer(reader))[:4] == b"\0\0\0\7"
            writer.close()
        assert gateway.slow_clients.cut_count == 0

    run(body, memory_bytes=1_500_000)


def topics_of(count: int) -> bytes:
    topics = [{"name": f"t{n}"} for n in range(count)]
    return request_of("Metadata", 3, 4, {"topics": topics, "allow_auto_topic_creation": False})


def test_a_request_with_many_entries_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        gateway.seen = []  # type: ignore[attr-defined]
        reader, writer = await connect()
        for count, threads in ((INLINE_ENTRIES, 0), (INLINE_ENTRIES + 1, 1)):
            begun: list[Any] = []
            plain = LongRequests.run

            async def observed(self: LongRequests, work: Any, begun: list[Any] = begun, plain: Any = plain) -> Any:
                begun.append(work)
                return await plain(self, work)

            with monkeypatch.context() as patch:
                patch.setattr(LongRequests, "run", observed)
                writer.write(topics_of(count))
                assert await answer(reader)
            assert len(begun) == 2 * threads, "once to decode it, once to encode its answer"
        assert gateway.seen == [INLINE_ENTRIES, INLINE_ENTRIES + 1]  # type: ignore[attr-defined]
        assert gateway.memory.used_bytes == 0
        writer.write(topics_of(codec.ELEMENTS_MAX + 1))
        assert await answer(reader)
        assert len(gateway.seen) == 2, "it is refused"  # type: ignore[attr-defined]
        writer.close()

    run(body)


def test_requests_with_many_entries_wait_for_memory_one_after_the_other() -> None:
    async def main() -> None:
        gateway = Gateway(limits=Limits(list_bytes=100 * ENTRY_BYTES))
        entered: list[int] = []
        leave = asyncio.Event()

        async def one(number: int) -> None:
            async with gateway.long_requests.decoded(lambda: ({}, 60)):
                entered.append(number)
                await leave.wait()

        tasks = [asyncio.create_task(one(number)) for number in range(4)]
        while not gateway.memory.lists.waiting_count:
            await asyncio.sleep(0.001)
        assert entered == [0, 1], "one fits, one may exceed the limit"
        leave.set()
        await asyncio.gather(*tasks)
        assert entered == [0, 1, 2, 3] and gateway.memory.lists.used_bytes == 0
        gateway.close()

    asyncio.run(main())


def join_of(host: str, metadata: bytes = b"", member_id: str = "", session_timeout_ms: int = 60_000) -> Join:
    protocols = [("range", metadata)]
    return Join(member_id, None, "c", host, session_timeout_ms, 60_000, "consumer", protocols, needs_member_id=False)


def test_the_groups_of_all_clients_share_their_memory_and_one_address_has_half_of_it() -> None:
    async def main() -> None:
        memory = MemoryBudget(MIB)
        groups = Groups(lambda: 0.0, memory)
        codes = [(await groups.join(f"g{n}", join_of("hostile", bytes(100_000)))).error for n in range(20)]
        assert codes[0] is Kafka.NONE and codes[-1] is Kafka.COORDINATOR_LOAD_IN_PROGRESS
        assert memory.used_bytes <= MIB // HOST_SHARE
        joined = await groups.join("mine", join_of("honest", bytes(1_000)))
        assert joined.error is Kafka.NONE
        protocols = None, None
        too_large = [(joined.member_id, bytes(MIB))]
        synced = await groups.sync("mine", joined.member_id, None, joined.generation, protocols, too_large)
        assert synced.error is Kafka.REBALANCE_IN_PROGRESS
        groups.close()
        assert memory.used_bytes == 0

    asyncio.run(main())


def test_few_groups_without_members_are_remembered_for_some_time() -> None:
    async def main() -> None:
        now_s = [0.0]
        groups = Groups(lambda: now_s[0], MemoryBudget(MIB))
        for n in range(EMPTIED_MAX + 5):
            joined = await groups.join(f"g{n}", join_of("client"))
            assert groups.leave(f"g{n}", joined.member_id, None) is Kafka.NONE
        remembered = groups.emptied()
        assert len(remembered) == EMPTIED_MAX and "g4" not in remembered and remembered["g5"] == "consumer"
        assert (await groups.join("g5", join_of("client"))).error is Kafka.NONE
        assert "g5" not in groups.emptied()
        groups.forget("g6")
        assert "g6" not in groups.emptied() and "g7" in groups.emptied()
        now_s[0] = EMPTIED_MS / 1000
        assert groups.emptied() == {}
        groups.close()

    asyncio.run(main())


def test_issued_member_ids_count_and_expire() -> None:
    async def main() -> None:
        now_s = [0.0]
        memory = MemoryBudget(MIB)
        groups = Groups(lambda: now_s[0], memory)
        join = join_of("hostile", session_timeout_ms=1_800_000)._replace(needs_member_id=True)
        codes = {(await groups.join("g", join)).error for _ in range(2_000)}
        assert codes == {Kafka.MEMBER_ID_REQUIRED, Kafka.COORDINATOR_LOAD_IN_PROGRESS}
        assert 0 < memory.used_bytes <= MIB // HOST_SHARE + MEMBER_BYTES + GROUP_BYTES
        groups.close()
        assert memory.used_bytes == 0

    asyncio.run(main())


def test_a_new_member_whose_client_is_gone_is_removed_at_once() -> None:
    async def main() -> None:
        memory = MemoryBudget(MIB)
        groups = Groups(lambda: 0.0, memory)
        first = await groups.join("g", join_of("a"))
        held = memory.used_bytes
        again = asyncio.create_task(groups.join("g", join_of("b", bytes(100_000), session_timeout_ms=1_800_000)))
        await asyncio.sleep(0)
        assert memory.used_bytes > held
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        assert memory.used_bytes == held
        joined = await groups.join("g", join_of("a", member_id=first.member_id))
        assert joined.error is Kafka.NONE, "the others do not wait for it"
        groups.close()

    asyncio.run(main())


def test_a_member_whose_client_is_gone_does_not_wait_for_the_others() -> None:
    async def main() -> None:
        now_s = [0.0]
        memory = MemoryBudget(MIB)
        groups = Groups(lambda: now_s[0], memory)
        first = await groups.join("g", join_of("a"))
        both = asyncio.create_task(groups.join("g", join_of("b", session_timeout_ms=1_000)))
        await asyncio.sleep(0)
        assert (await groups.join("g", join_of("a", member_id=first.member_id))).error is Kafka.NONE
        second = await both
        waiting = asyncio.create_task(
            groups.join("g", join_of("b", member_id=second.member_id, metadata=b"new", session_timeout_ms=1_000))
        )
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        group = groups.find("g")
        assert group is not None and len(group.members) == 2
        assert group.next_deadline_ms == 1_000, "its session ends without it"
        now_s[0] = 1.1
        again = asyncio.create_task(groups.join("g", join_of("a", member_id=first.member_id)))
        await asyncio.sleep(0)
        groups._expire(group)
        assert (await again).error is Kafka.NONE and len(group.members) == 1
        groups.close()

    asyncio.run(main())


def test_the_budget_is_the_sum_of_its_shares() -> None:
    limits = Limits()
    memory = GatewayMemory(limits)
    assert memory.limit_bytes == sum(
        (
            limits.memory_bytes, limits.list_bytes, limits.broker_answer_bytes, limits.conversion_bytes,
            limits.converted_bytes, limits.unread_bytes, limits.group_bytes, limits.fetch_session_bytes,
        )
    )  # fmt: skip
    assert memory.used_bytes == 0


class FullBroker:
    """A broker with one partition, which has batches of BATCH_BYTES without an end."""

    def __init__(self) -> None:
        rows = pa.record_batch(
            [[None], [bytes(BATCH_BYTES)], [None], [0]],
            schema=ENVELOPE_SCHEMA,
        )
        self._batch = bytes(encode_batch(rows, schema_id=5, min_timestamp_ms=0, max_timestamp_ms=0))

    async def request(self, api: Any, message: FetchRequest, response: type) -> Any:
        count = max(min(message.max_bytes, message.partitions[0].max_bytes) // len(self._batch), 1)
        payload = self._batch * count
        result = FetchResult("t", 0, 0, 9, 9, 0, length_bytes=len(payload))
        return FetchResponse([result]), memoryview(payload)


BATCH_BYTES = 200_000
FULL_FETCH = request_of(
    "Fetch",
    1,
    11,
    {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "topics": [
            {"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 64 * MIB}]}
        ],
        "forgotten_topics_data": [],
    },
)


def run_full(body: Any, **limits: Any) -> None:
    """Run `body` with a gateway that serves FETCH from a FullBroker."""
    broker = FullBroker()
    topic = TopicInfo("t", "id", "envelope", 1, 5, {5: ENVELOPE_SCHEMA}, (), None, {}, 0, ())

    async def fetching(session: Session, request: Body, version: int) -> Body:
        async def connection() -> FullBroker:
            return broker

        session.broker = connection  # type: ignore[method-assign, assignment]
        session.gateway.topics._by_name["t"] = session.gateway.clock_s(), topic
        return await fetch.fetch(session, request, version)  # type: ignore[arg-type, return-value]

    with_apis(body, {1: ServedApi(Api("Fetch", 1, 4, 12), fetching)}, Limits(**limits), SecurityProtocol.PLAINTEXT)


SILENT = 100
"""Clients that do not read: the number that `docs/kafka-clients.md` promises."""
REQUESTS = 8
"""Requests of a client that does not read."""
FULL = {
    "unread_bytes": 384 * BATCH_BYTES,
    "broker_answer_bytes": 10**9,
    "fetch_bytes": 32 * BATCH_BYTES,
}
"""The limits of a gateway, with BATCH_BYTES in place of 1 MiB."""


async def begin_silent_clients(server: GatewayServer, connect: Any) -> list[asyncio.StreamWriter]:
    """Connect SILENT clients, which send fetches and read no answers. The buffers of their sockets are small."""
    writers = [(await connect(limit=1_024))[1] for _ in range(SILENT)]
    while len(server._sessions) < SILENT:
        await asyncio.sleep(0.001)
    for session in server._sessions:
        session._stream.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    for writer in writers:
        writer.write(FULL_FETCH * REQUESTS)
    while sum(session._sending is not None for session in server._sessions) < SILENT:
        await asyncio.sleep(0.01)
    return writers


def test_a_client_that_reads_does_not_wait_for_a_hundred_that_do_not() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        silent = await begin_silent_clients(server, connect)
        assert gateway.memory.unread.used_bytes > gateway.memory.unread.limit_bytes // 2
        for _ in range(3):
            reader, writer = await connect(limit=MIB)
            writer.write(FULL_FETCH)
            assert len(await answer(reader)) > BATCH_BYTES
            assert not gateway.memory.unread.waiting_count
            writer.close()
        assert gateway.slow_clients.cut_count == 0
        for writer in silent:
            writer.close()

    run_full(body, stall_s=3_600, **FULL)


def test_answers_to_a_client_grow_with_those_that_it_has_read() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        reader, writer = await connect(limit=64 * MIB)
        sizes = []
        for _ in range(6):
            writer.write(FULL_FETCH)
            sizes.append(len(await answer(reader)) // BATCH_BYTES)
        writer.close()
        assert sizes == [min(FIRST_ANSWER_BYTES * 2**i // BATCH_BYTES, 40) for i in range(6)], (
            "at most 1/32 of the free"
        )

    run_full(body, unread_bytes=ANSWER_SHARE * 40 * (BATCH_BYTES + 1_000), broker_answer_bytes=10**9)


def test_clients_without_progress_are_disconnected_while_more_than_half_is_taken() -> None:
    async def body(server: GatewayServer, gateway: Gateway, connect: Any) -> None:
        silent = await begin_silent_clients(server, connect)
        assert not gateway.memory.unread.waiting_count
        now_s = gateway.clock_s()
        gateway.slow_clients.check(lambda: list(server._sessions), now_s + 3_599)
        assert gateway.slow_clients.cut_count == 0
        gateway.slow_clients.check(lambda: list(server._sessions), now_s + 3_602)
        assert gateway.slow_clients.cut_count > SILENT // 2
        while gateway.memory.unread.used_bytes > gateway.memory.unread.limit_bytes // 2:
            await asyncio.sleep(0.01)
        for writer in silent:
            writer.close()

    run_full(body, stall_s=3_600, **FULL)
