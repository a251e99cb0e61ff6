"""Answers in pieces: the same bytes as encoded at once, never above the limit."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.network.large_responses import (
    INLINE_BYTES,
    PIECE_BYTES,
    FittingItems,
    LargeResponses,
    joined,
    one_by_one,
    parts_of,
    too_large,
)
from sparklog_broker.network.reply import Response

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import ResponseTooLargeError
from sparklog.protocol import group_messages as m
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from tests.support.cases import for_each
from tests.unit.broker.answers import sent

LIMIT = 256 * 1024


def run(
    scenario: Callable[[LargeResponses, MemoryBudget], Awaitable[None]],
    limit_bytes: int = LIMIT,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    async def main() -> None:
        budget = MemoryBudget(1024 * 1024)
        answers = LargeResponses(budget, LoopTimeSlices(asyncio.get_running_loop(), clock=clock), limit_bytes)
        await asyncio.wait_for(scenario(answers, budget), 30)
        assert budget.used_bytes == 0

    asyncio.run(main())


def groups(count: int, id_chars: int = 20) -> list[m.GroupSummary]:
    return [m.GroupSummary(f"{i:0{id_chars}d}", "Empty", "offsets", i) for i in range(count)]


async def build(answers: LargeResponses, found: list[m.GroupSummary], *, paged: bool = False) -> Response:
    items = one_by_one(found)
    return await answers.build(m.ListGroupsResponse([]), "groups", items, paged=paged, remedy="ask for less")


@for_each("count", [0, 1, 15, 16, 1_000, 5_000])
def test_it_equals_the_answer_encoded_at_once(count: int) -> None:
    async def scenario(answers: LargeResponses, _: MemoryBudget) -> None:
        answer = sent(Api.LIST_GROUPS, await build(answers, groups(count)), m.ListGroupsResponse)
        assert answer == m.ListGroupsResponse(groups(count))

    run(scenario)


def test_pages_are_full_and_complete() -> None:
    async def scenario(answers: LargeResponses, _: MemoryBudget) -> None:
        left, pages = groups(20_000), 0
        while left:
            response = await build(answers, left, paged=True)
            assert response.header is not None
            assert sum(map(len, response.header)) <= LIMIT
            page = sent(Api.LIST_GROUPS, response, m.ListGroupsResponse)
            assert page.groups == left[: len(page.groups)]
            assert page.groups
            left, pages = left[len(page.groups) :], pages + 1
            assert page.more == bool(left)
        assert pages > 1

    run(scenario)


def test_a_client_without_pages_gets_an_error_with_the_remedy() -> None:
    async def scenario(answers: LargeResponses, _: MemoryBudget) -> None:
        with pytest.raises(ResponseTooLargeError, match=r"response\.max\.bytes.*ask for less"):
            await build(answers, groups(20_000))
        with pytest.raises(ResponseTooLargeError):
            await build(answers, groups(1, LIMIT), paged=True)

    run(scenario)


def test_no_item_beyond_the_limit_is_encoded() -> None:
    async def scenario(answers: LargeResponses, _: MemoryBudget) -> None:
        made = 0

        def endless() -> Iterator[m.GroupSummary]:
            nonlocal made
            while True:
                made += 1
                yield groups(1)[0]

        with pytest.raises(ResponseTooLargeError):
            await answers.build(m.ListGroupsResponse([]), "groups", one_by_one(endless()), paged=False, remedy="")
        assert made * len(encode(groups(1)[0])) < LIMIT + 1000

    run(scenario)


def test_one_large_answer_at_a_time_and_small_ones_beside_it() -> None:
    async def scenario(answers: LargeResponses, budget: MemoryBudget) -> None:
        def large() -> Iterator[tuple[bytes]]:
            yield (encode(groups(1, INLINE_BYTES)[0]),)
            yield from one_by_one(groups(2_000))

        def build_large() -> asyncio.Future[Response]:
            return asyncio.ensure_future(
                answers.build(m.ListGroupsResponse([]), "groups", large(), paged=False, remedy="")
            )

        both = [build_large(), build_large()]
        most = 0
        while not all(b.done() for b in both):
            await asyncio.sleep(0)
            most = max(most, budget.used_bytes)
            assert len(sent(Api.LIST_GROUPS, await build(answers, groups(3)), m.ListGroupsResponse).groups) == 3
        assert most <= LIMIT, "of two large answers one is counted: the other waits"
        await asyncio.gather(*both)

    run(scenario)


def test_a_cancelled_one_lets_the_next_one_in() -> None:
    async def scenario(answers: LargeResponses, _: MemoryBudget) -> None:
        large = groups(3_000, 40)
        first = asyncio.ensure_future(build(answers, large))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await build(answers, large)).header

    ticks = itertools.count()
    run(scenario, clock=lambda: next(ticks) * 0.001)  # a slice ends after a few looks at the clock


def test_fitting_takes_at_least_one() -> None:
    members: Any = groups(10)
    some = FittingItems(members, 3 * len(encode(members[0])))
    assert set(some.collect()) == {b""}
    assert (len(some.encoded), some.complete) == (3, False)
    one = FittingItems(members, 1)
    list(one.collect())
    assert (len(one.encoded), one.complete) == (1, False)
    everything = FittingItems(members, 1 << 20)
    list(everything.collect())
    assert (len(everything.encoded), everything.complete) == (10, True)


def test_a_message_in_parts_is_the_message() -> None:
    details = m.GroupDetails(0, "g", "Stable", 3, "uniform", [], "")
    member = m.GroupMember("m", None, "c", "h", 1, ["t"], [m.TopicPartitions("t", [1])], [])
    parts = parts_of(details, {"members": (1, [encode(member)])})
    whole = m.DescribeGroupsResponse([details])
    details_sent = b"".join(parts)
    details.members = [member]
    response = Response(whole, header=[b"\x94\x91", details_sent, b"\xc2\xff"])
    whole.throttle_ms = 70_000  # it is known when the header is there
    assert sent(Api.DESCRIBE_GROUPS, response, m.DescribeGroupsResponse) == whole


@given(st.lists(st.integers(0, 2 * PIECE_BYTES), max_size=20))
def test_joined_parts_are_the_same_bytes_in_few_pieces(sizes: list[int]) -> None:
    parts = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    pieces = joined(parts)
    assert b"".join(pieces) == b"".join(parts)
    assert len(pieces) <= 2 * sum(sizes) / PIECE_BYTES + 1


def test_the_error_names_the_limit() -> None:
    assert "70000 bytes" in str(too_large(70_000, "ask for less"))
