"""A principal with write access to a topic, and to a transactional id of its own, can do nothing in the name of
others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.security.acls import Operation, Resource, ResourceType
from sparklog.security.principals import Principal
from sparklog.types import TopicPartition
from tests.support.transactions import plain, rows, visible
from tests.unit.broker.security.access_world import ADMIN, ALICE, MALLORY, World, item_codes

TP = TopicPartition("public", 1)
WRONG_MAPPING, NO_RIGHT, FENCED = 35, 105, 32


def run(directory: Path, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = await World.begin(directory)
        await world.furnish()
        for who, name in ((ALICE, "till-a"), (MALLORY, "till-m")):
            topic, own = Resource(ResourceType.TOPIC, "public"), Resource(ResourceType.TRANSACTIONAL_ID, name)
            group = Resource(ResourceType.GROUP, "g")
            needs = [(Operation.WRITE, topic), (Operation.READ, topic), (Operation.WRITE, own), (Operation.READ, group)]
            await world.grant(who, needs)
        await asyncio.wait_for(scenario(world), 30)
        await world.close()

    asyncio.run(main())


async def send(
    world: World, who: Principal, value: bytes, identity: tuple[int, int], sequence: int, transactional_id: str | None
) -> int:
    """The partition's error."""
    data = rows(value, identity, sequence)
    request = m.ProduceRequest(-1, 5_000, [m.ProducePartition(*TP, len(data))], transactional_id)
    answer = await world.ask(who, Api.PRODUCE, request, data)
    return answer.error_code or item_codes(answer.message)[0]


def test_no_principal_writes_into_another_ones_transaction(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest("till-a"))
        own = await world.do(MALLORY, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest("till-m"))
        alices = made.producer_id, made.producer_epoch
        assert await send(world, ALICE, b"1", alices, 0, "till-a") == 0
        assert await send(world, MALLORY, b"evil", alices, 1, "till-a") == NO_RIGHT
        assert await send(world, MALLORY, b"evil", alices, 1, "till-m") == WRONG_MAPPING
        assert await send(world, MALLORY, b"evil", alices, 1, None) == NO_RIGHT
        both = rows(b"own", (own.producer_id, own.producer_epoch), 0) + rows(b"evil", alices, 1)
        request = m.ProduceRequest(-1, 5_000, [m.ProducePartition(*TP, len(both))], "till-m")
        answer = await world.ask(MALLORY, Api.PRODUCE, request, both)
        assert item_codes(answer.message) == [WRONG_MAPPING]
        assert await send(world, ALICE, b"2", alices, 1, "till-a") == 0
        end = txn.EndTxnRequest("till-m", *alices, True)
        assert (await world.ask(MALLORY, Api.END_TXN, end)).error_code == WRONG_MAPPING
        assert (
            await world.ask(MALLORY, Api.END_TXN, txn.EndTxnRequest("till-a", *alices, False))
        ).error_code == NO_RIGHT
        offsets = groups.TxnOffsetCommitRequest("till-m", *alices, "g", [groups.CommittedOffset("public", 0, 1)])
        assert (await world.ask(MALLORY, Api.TXN_OFFSET_COMMIT, offsets)).error_code == WRONG_MAPPING
        await world.do(ALICE, Api.END_TXN, txn.EndTxnRequest("till-a", *alices, True))
        assert visible(world.broker, TP) == [b"1", b"2"]

    run(tmp_path, scenario)


def test_a_producer_id_belongs_to_its_first_principal(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())
        assert await write(world, ALICE, b"1", made.producer_id, 0) == 0
        assert await write(world, MALLORY, b"evil", made.producer_id, 1) == WRONG_MAPPING
        assert await write(world, ALICE, b"2", made.producer_id, 1) == 0
        unused = (await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())).producer_id
        assert await write(world, MALLORY, b"evil", unused, 0) == WRONG_MAPPING, "before its owner has used it, too"
        assert visible(world.broker, TP) == [b"1", b"2"]

    run(tmp_path, scenario)


def test_groups_and_shared_transactions_are_their_owners(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leave = groups.GroupHeartbeatRequest("crew", "m1", -1)
        assert (await world.ask(MALLORY, Api.GROUP_HEARTBEAT, leave)).error_code == 104
        end = txn.EndSharedTxnRequest("appl", 0, "run", 0, False)
        assert (await world.ask(MALLORY, Api.END_SHARED_TXN, end)).error_code == NO_RIGHT
        renew = txn.RenewSharedTxnRequest("appl", 0, "run")
        assert (await world.ask(MALLORY, Api.RENEW_SHARED_TXN, renew)).error_code == NO_RIGHT
        aborts = txn.AbortTransactionRequest("__shared:appl")
        assert (await world.ask(MALLORY, Api.ABORT_TRANSACTION, aborts)).error_code == 106
        found = await world.do(ADMIN, Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(["crew"]))
        assert [member.member_id for member in found.groups[0].members] == ["m1"]

    run(tmp_path, scenario)


async def write(world: World, who: Principal, value: bytes, producer_id: int, sequence: int) -> int:
    """The error of a batch without a transaction."""
    data = plain(rows(value, (producer_id, 0), sequence))
    request = m.ProduceRequest(1, 5_000, [m.ProducePartition(*TP, len(data))])
    return item_codes((await world.ask(who, Api.PRODUCE, request, data)).message)[0]


def test_a_producer_id_belongs_to_its_first_principal_after_a_restart_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        used, unused = [
            (await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())).producer_id for _ in range(2)
        ]
        assert await write(world, ALICE, b"1", used, 0) == 0
        await world.restart()
        assert await write(world, MALLORY, b"evil", used, 1) == WRONG_MAPPING
        assert await write(world, MALLORY, b"evil", unused, 0) == WRONG_MAPPING
        assert await write(world, ALICE, b"2", used, 1) == 0
        assert await write(world, ALICE, b"3", unused, 0) == 0
        new = (await world.do(MALLORY, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())).producer_id
        assert new not in (used, unused)
        assert await write(world, ALICE, b"evil", new, 0) == WRONG_MAPPING
        assert visible(world.broker, TP) == [b"1", b"2", b"3"]

    run(tmp_path, scenario)


def test_no_client_writes_outside_a_transaction_as_its_producer(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest("till-a"))
        for _ in range(2):
            assert await write(world, MALLORY, b"evil", made.producer_id, 0) == WRONG_MAPPING
            assert await write(world, MALLORY, b"evil", made.producer_id + 1_000_000, 0) == WRONG_MAPPING
            await world.restart()
        assert await send(world, ALICE, b"1", (made.producer_id, made.producer_epoch), 0, "till-a") == 0

    run(tmp_path, scenario)


def test_transactions_are_their_owners_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        made = await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest("till-a"))
        alices = made.producer_id, made.producer_epoch
        assert await send(world, ALICE, b"1", alices, 0, "till-a") == 0
        await world.restart()
        assert await send(world, MALLORY, b"evil", alices, 1, "till-a") == NO_RIGHT
        assert await send(world, MALLORY, b"evil", alices, 1, "till-m") == WRONG_MAPPING
        assert await send(world, MALLORY, b"evil", alices, 1, None) == NO_RIGHT
        end = txn.EndTxnRequest("till-m", *alices, True)
        assert (await world.ask(MALLORY, Api.END_TXN, end)).error_code == WRONG_MAPPING
        assert await send(world, ALICE, b"2", alices, 1, "till-a") == 0
        await world.do(ALICE, Api.END_TXN, txn.EndTxnRequest("till-a", *alices, True))
        assert visible(world.broker, TP) == [b"1", b"2"]

    run(tmp_path, scenario)


def test_a_token_of_ones_own_fences_ones_own_runs_as_before(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, "alices"))])
        tokens = []
        for version in range(2):
            drawn = (await world.do(ALICE, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())).producer_id
            tokens.append(drawn)
            join = txn.JoinSharedTxnRequest("alices", version, f"run-{version}", drawn)
            identity = await world.do(ALICE, Api.JOIN_SHARED_TXN, join)
            commit = txn.EndSharedTxnRequest(
                "alices", version, f"run-{version}", drawn, True, [identity.producer_id], ""
            )
            await world.do(ALICE, Api.END_SHARED_TXN, commit)
            await world.restart()
        zombie = txn.JoinSharedTxnRequest("alices", 2, "run-0", tokens[0])
        assert (await world.ask(ALICE, Api.JOIN_SHARED_TXN, zombie)).error_code == FENCED

    run(tmp_path, scenario)
