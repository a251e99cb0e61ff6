"""Requests with long headers have turns: few of them are there in their decoded form at the same time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.network.gateway_claim import GatewayClaim
from sparklog_broker.network.long_requests import DECODED_BYTES_PER_BYTE, LongRequests
from sparklog_broker.network.reply import Response
from sparklog_broker.pipeline import HEADER_BYTES_MAX, Pipeline, check_header_size

from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import InvalidRequestError, RequestTimedOutError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_request, encode
from sparklog.protocol.frames import RequestPrefix
from sparklog.protocol.group_messages import DescribeGroupsRequest, DescribeGroupsResponse, OffsetCommitResponse
from sparklog.protocol.messages import FetchPartition, FetchRequest
from sparklog.protocol.transaction_messages import DescribeTransactionsRequest, EndSharedTxnRequest
from sparklog.replication.transactions.model import TRANSACTIONAL_ID_CHARS_MAX, TransactionLimits
from sparklog.types import SHARED_PREFIX
from tests.support.requests import Asking

LIMIT_BYTES = 100 * DECODED_BYTES_PER_BYTE


async def turns(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class Guests:
    """Tasks that take turns until they are told to go."""

    def __init__(self, long_requests: LongRequests) -> None:
        self._of = long_requests
        self.inside: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, header_bytes: int, kind: str = "others") -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, header_bytes, kind))
        await turns()

    async def _stay(self, name: str, header_bytes: int, kind: str) -> None:
        async with self._of.turn(kind, header_bytes):
            self.inside.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.inside.remove(name)

    async def go(self, name: str) -> None:
        self._ends[name].set()
        await turns()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await turns()


def test_turns_are_limited_and_in_order_of_arrival() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        for name, size in (("a", 60), ("b", 40), ("c", 60), ("d", 1)):
            await guests.come(name, size)
        assert guests.inside == ["a", "b"], "d does not overtake c"
        await guests.go("b")
        assert guests.inside == ["a"]
        await guests.go("a")
        assert guests.inside == ["c", "d"]

    asyncio.run(scenario())


def test_one_that_is_larger_than_the_limit_is_alone() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        await guests.come("huge", 5_000)
        await guests.come("small", 1)
        assert guests.inside == ["huge"]
        await guests.go("huge")
        assert guests.inside == ["small"]

    asyncio.run(scenario())


def test_kinds_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        await guests.come("a", 5_000, "waiting")
        await guests.come("b", 5_000, "others")
        await guests.come("c", 5_000, "brokers")
        assert guests.inside == ["a", "b", "c"]

    asyncio.run(scenario())


def test_a_client_that_leaves_while_it_waits_delays_no_other() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        await guests.come("a", 60)
        await guests.come("b", 60)
        await guests.come("c", 30)
        await guests.cancel("b")
        assert guests.inside == ["a", "c"]
        await guests.cancel("a")
        await guests.go("c")
        await guests.come("d", 100)
        assert guests.inside == ["d"], "all is given back"

    asyncio.run(scenario())


def test_a_request_cancelled_at_its_turn_gives_it_back() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        await guests.come("a", 100)
        await guests.come("b", 100)
        await guests.come("c", 100)
        guests._ends["a"].set()
        await asyncio.sleep(0)  # a's turn ends in this step: b has got it, and has not run yet
        assert guests.inside == []
        await guests.cancel("b")
        assert guests.inside == ["c"]

    asyncio.run(scenario())


def test_a_request_cancelled_while_it_is_passed_over_is_gone() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES))
        for name in ("a", "b", "c"):
            await guests.come(name, 100)
        guests._tasks["a"].cancel()
        guests._tasks["b"].cancel()
        await turns()
        assert guests.inside == ["c"]
        assert guests._tasks["b"].cancelled()

    asyncio.run(scenario())


def test_a_request_that_waits_too_long_is_refused() -> None:
    async def scenario() -> None:
        guests = Guests(LongRequests(LIMIT_BYTES, patience_s=0))
        await guests.come("a", 100)
        async with AsyncExitStack() as stack:
            with pytest.raises(RequestTimedOutError, match="name fewer items"):
                await stack.enter_async_context(guests._of.turn("others", 100))
        await guests.go("a")
        await guests.come("b", 100)
        assert guests.inside == ["b"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (Api.DESCRIBE_GROUPS, DescribeGroupsRequest([f"{i:0249}" for i in range(4_000)])),
        (Api.FETCH, FetchRequest(0, 1, 1, 0, [FetchPartition(f"{i:0249}", 0, 0, 1) for i in range(4_000)])),
    ],
)
def test_long_requests_are_not_decoded_before_their_turn(api: Api, request_: Message) -> None:
    header = encode(request_, APIS[api].version_max)
    assert 1_000_000 < len(header) < HEADER_BYTES_MAX
    most = at_once = 0

    async def handler(request: Any, payload: memoryview, context: Any) -> Response:
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        await turns()
        at_once -= 1
        return Response(DescribeGroupsResponse([]) if api is Api.DESCRIBE_GROUPS else OffsetCommitResponse([]))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        broker = SimpleNamespace(
            cluster=SimpleNamespace(has_joined=True),
            time_slices=LoopTimeSlices(loop, clock=loop.time),
            long_requests=LongRequests(2 * len(header) * DECODED_BYTES_PER_BYTE),
        )
        pipeline = Pipeline(cast(Any, broker), {api: handler}, gateways=GatewayClaim(lambda: 0.0))
        prefix = RequestPrefix(api, APIS[api].version_max, 7, len(header), len(header))
        await asyncio.gather(*(pipeline.answer(prefix, memoryview(header), cast(Any, Asking())) for _ in range(10)))

    asyncio.run(scenario())
    assert most == 2


def test_more_participants_than_a_transaction_takes_are_not_read() -> None:
    """Of a million, which nobody can have joined, sets were made: 0.3 s in which the loop did nothing else."""
    version, most = APIS[Api.END_SHARED_TXN].version_max, TransactionLimits().participants_max
    for count, is_read in ((most, True), (most + 1, False)):
        ids = [2**62 + i for i in range(count)]
        header = encode(EndSharedTxnRequest("app", 0, "run", 1, True, ids), version)
        check_header_size(Api.END_SHARED_TXN, len(header))
        with nullcontext() if is_read else pytest.raises(InvalidRequestError, match="length <= 100000"):
            assert decode_request(Api.END_SHARED_TXN, version, header)
    with pytest.raises(InvalidRequestError, match="bytes"):
        check_header_size(Api.END_SHARED_TXN, HEADER_BYTES_MAX + 1)
    check_header_size(Api.PRODUCE, HEADER_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("api", "longest"),
    [
        (Api.DESCRIBE_GROUPS, DescribeGroupsRequest(["g" * 249])),
        (
            Api.DESCRIBE_TRANSACTIONS,
            DescribeTransactionsRequest([SHARED_PREFIX + "a" * TRANSACTIONAL_ID_CHARS_MAX]),
        ),
    ],
)
def test_impossible_names_are_refused_as_they_are_read(api: Api, longest: Any) -> None:
    field = longest.__struct_fields__[0]
    (name,) = getattr(longest, field)
    version = APIS[api].version_max
    assert getattr(decode_request(api, version, encode(longest, version)), field) == [name]
    longer = type(longest)([name + "x"])

    async def handler(*_: Any) -> Any:
        raise AssertionError("must not be called")

    header = encode(longer, version)
    pipeline = Pipeline(cast(Any, SimpleNamespace(cluster=None)), {api: handler}, gateways=GatewayClaim(lambda: 0.0))
    prefix = RequestPrefix(api, version, 7, len(header), len(header))
    reply = asyncio.run(pipeline.answer(prefix, memoryview(header), cast(Any, Asking())))
    assert reply is not None
    assert reply.close
    assert "length" in decode_error(bytes(cast(bytes, reply.parts[0])[16:]))
