"""Clients in a life that break the rules: the broker has to refuse them, without harm to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from sparklog.errors import InvalidProducerIdMappingError, ProducerFencedError, SparklogError, error_from_code
from sparklog.format.batch import assign_producer
from sparklog.protocol import group_messages as g
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.testing._sim_client import SimClient
from sparklog.types import ProducerIdAndEpoch
from tests.campaigns.checker import generate
from tests.campaigns.checker.history import Kind, Outcome
from tests.simulation.sim_members import Member
from tests.simulation.sim_producer import PRODUCE_TIMEOUT_MS, encode_values
from tests.simulation.sim_roles import (
    TRANSACTION_TIMEOUT_MS,
    ClientContext,
    Role,
    Transactions,
    note_poll,
    partition_of,
)

TWIN_VALUES = 1 << 24
"""Difference between the values of the two twins."""

AHEAD = 6, 12
"""Distance of an invented producer id above the last issued one."""


async def _produce(
    context: ClientContext,
    client: SimClient,
    identity: ProducerIdAndEpoch,
    sequence: int,
    partition: str,
    values: Sequence[int],
    *,
    transactional: bool = False,
) -> int:
    """Send one batch once, in a request without a transaction; return its base offset. Raises SparklogError."""
    payload = encode_values(values, context.now_ms())
    assign_producer(
        memoryview(payload),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    request = ProduceRequest(-1, PRODUCE_TIMEOUT_MS, [ProducePartition(*partition_of(partition), len(payload))])
    answer, _ = await client.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload))
    (result,) = answer.results
    if result.error_code:
        raise error_from_code(result.error_code, result.message)
    return result.base_offset


async def twins(context: ClientContext) -> None:
    """Run two processes with one identity, as after a copy of a machine: a batch acknowledged to one of them is
    stored."""
    drawn = await context.client.ask_until(Api.INIT_PRODUCER_ID, t.InitProducerIdRequest(), t.InitProducerIdResponse)
    identity = ProducerIdAndEpoch(drawn.producer_id, drawn.producer_epoch)
    context.notes.shared_identity(identity.producer_id)
    await asyncio.gather(*(_twin(context, identity, first) for first in (0, TWIN_VALUES)))


async def _twin(context: ClientContext, identity: ProducerIdAndEpoch, first: int) -> None:
    values = generate.unique_values(context.number)
    sequence = 0
    partition = context.inputs[0]
    while context.wanted():
        await context.think()
        mine = [next(values) + first for _ in range(2)]
        operation = context.history.begin(Kind.SEND, [(partition, mine)])
        try:
            base_offset = await _produce(context, context.client, identity, sequence, partition, mine)
        except SparklogError:
            context.history.end(operation, Outcome.UNKNOWN)
        else:
            context.history.end(operation, Outcome.OK, [list(range(base_offset, base_offset + 2))])
        sequence += 2


async def inventor(context: ClientContext) -> None:
    """Write with producer ids that are not issued yet, but soon will be."""
    values = generate.unique_values(context.number)
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.2)
        drawn = await context.client.ask_until(
            Api.INIT_PRODUCER_ID, t.InitProducerIdRequest(), t.InitProducerIdResponse
        )
        invented = ProducerIdAndEpoch(drawn.producer_id + context.rng.randint(*AHEAD), context.rng.choice([0, 0, 5]))
        partition = context.rng.choice(context.inputs)
        mine = [next(values) for _ in range(context.rng.randint(1, 3))]
        operation = context.history.begin(Kind.SEND, [(partition, mine)])
        accepted = False
        try:
            await _produce(context, context.client, invented, 0, partition, mine)
            accepted = True
        except InvalidProducerIdMappingError:
            continue
        except SparklogError:  # the id may have been issued before a late request arrives
            context.notes.shared_identity(invented.producer_id)
        finally:
            context.history.end(operation, Outcome.UNKNOWN)
        drawn = await context.client.ask_until(
            Api.INIT_PRODUCER_ID, t.InitProducerIdRequest(), t.InitProducerIdResponse
        )
        if drawn.producer_id > invented.producer_id:
            context.notes.shared_identity(invented.producer_id)
        elif accepted:
            context.notes.violated(f"producer {invented.producer_id} has written, and nobody has been given that id")


async def squatter(context: ClientContext) -> None:
    """Write transactional batches into partitions outside of the transaction: such batches would never be ended, and
    would block readers of committed records forever.
    """
    values = generate.unique_values(context.number)
    while context.wanted():
        await context.think()
        request = t.InitProducerIdRequest(f"squatter-{context.slot}", TRANSACTION_TIMEOUT_MS)
        drawn = await context.client.ask_until(Api.INIT_PRODUCER_ID, request, t.InitProducerIdResponse)
        identity = ProducerIdAndEpoch(drawn.producer_id, drawn.producer_epoch)
        partition, mine = context.rng.choice(context.inputs), [next(values)]
        operation = context.history.begin(Kind.SEND, [(partition, mine)])
        with contextlib.suppress(SparklogError):
            await _produce(context, context.client, identity, 0, partition, mine, transactional=True)
        context.history.end(operation, Outcome.UNKNOWN)


async def trespasser(context: ClientContext) -> None:
    """Run a member that commits offsets of partitions that it no longer owns."""
    member = Member(context, "group")
    read: dict[str, int] = {}
    while context.wanted():
        await context.think()
        try:
            polls = await member.poll()
            note_poll(context, polls)
            read |= {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
            for partition in sorted(read):
                await _trespass(context, member, partition, read[partition])
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
    await member.leave()


async def _trespass(context: ClientContext, member: Member, partition: str, offset: int) -> None:
    """Commit if the partition is not the member's. The broker reports the ownership on the same connection."""
    membership = member.membership

    def is_mine() -> bool:
        return membership.has_news or partition_of(partition) in membership.assigned | membership.held

    if is_mine():
        return
    operation = context.history.begin(Kind.COMMIT, offsets={partition: offset})
    with contextlib.suppress(SparklogError):
        await member.commit({partition: offset})
        if not is_mine():
            context.notes.violated(f"{partition} is not {membership.member_id}'s, and it could commit {offset}")
    context.history.end(operation, Outcome.UNKNOWN)


async def mixed(context: ClientContext) -> None:
    """Commit a group's offsets in a transaction, and later ones without it while it is open: these are newer, and stay.

    After a request without an answer it continues with another group: the request may still arrive, and neither kind of
    commit has a number that shows its age.
    """
    transactions = Transactions(context, f"mixed-{context.slot}")
    await transactions.init()
    tp = partition_of(context.inputs[0])
    position = context.number * 1_000_000
    group = f"mixed-{position}"
    while context.wanted():
        await context.think()
        position += 10
        commit = g.OffsetCommitRequest(group, [g.CommittedOffset(*tp, position + 1)], "", -1)
        fetch = g.OffsetFetchRequest(group, [g.TopicPartitions(tp.topic, [tp.partition])], require_stable=True)
        try:
            await transactions.send_offsets({str(tp): position}, group, "", -1, once=True)
            answer, _ = await context.client.ask(Api.OFFSET_COMMIT, commit, g.OffsetCommitResponse)
            if not answer.results[0].error_code:
                context.notes.committed(position + 1)
            await transactions.end(commit=True)
            found, _ = await context.client.ask(Api.OFFSET_FETCH, fetch, g.OffsetFetchResponse)
            if not found.offsets[0].error_code:
                context.notes.check_committed(found.offsets[0].offset)
        except ProducerFencedError:
            raise
        except SparklogError:
            group = f"mixed-{position}"
            await transactions.init()


ROLES: dict[str, Role] = {
    "twins": twins,
    "inventor": inventor,
    "squatter": squatter,
    "trespasser": trespasser,
    "mixed": mixed,
}
