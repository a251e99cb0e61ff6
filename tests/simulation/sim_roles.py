"""Roles of simulated clients: those of the campaigns with real processes, as coroutines. Each records its actions and
observations for the checker.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sparklog.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
    error_from_code,
)
from sparklog.format.batch import assign_producer
from sparklog.protocol import group_messages as g
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from sparklog.testing._sim_client import SimClient
from sparklog.testing._sim_reader import Row, SimReader
from sparklog.types import ProducerIdAndEpoch, TopicPartition
from tests.campaigns.checker import generate
from tests.campaigns.checker.history import Kind, Outcome, Recorder
from tests.simulation.notes import Notes
from tests.simulation.plans import Plan
from tests.simulation.sim_producer import PRODUCE_TIMEOUT_MS, Batch, SimProducer, encode_values

TRANSACTION_TIMEOUT_MS = 20_000


class ClientContext(NamedTuple):
    """The context of a client's life. `number` counts lives; `slot` is the same for all lives of one client."""

    seed: int
    number: int
    slot: int
    client: SimClient
    history: Recorder
    inputs: Sequence[str]
    outputs: Sequence[str]
    wanted: Callable[[], bool]
    done_batches: dict[int, int]
    """Number of complete batches by slot: the checkpoint of shared transactions."""
    now_ms: Callable[[], int]
    rng: random.Random
    plan: Plan
    notes: Notes

    async def think(self) -> None:
        """Wait for the application's time between two actions, sometimes 0."""
        await asyncio.sleep(0 if self.rng.random() < 0.3 else self.rng.random() * self.plan.think_s)


Role = Callable[[ClientContext], Coroutine[Any, Any, None]]


def partition_of(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


async def producer(context: ClientContext) -> None:
    """Send without transactions, with several calls in flight."""
    values = generate.unique_values(context.number)
    producer = await SimProducer.begin(
        context.client, context.notes, delivery_s=context.rng.choice(context.plan.delivery_s)
    )
    open_calls: set[int] = set()
    changed = asyncio.Event()

    def done(operation: int, records: int, base_offset: int) -> None:
        open_calls.discard(operation)
        changed.set()
        acked = list(range(base_offset, base_offset + records)) if base_offset >= 0 else [-1] * records
        context.history.end(operation, Outcome.OK if base_offset >= 0 else Outcome.UNKNOWN, [acked])

    for intent in generate.sends(context.seed, context.number, context.inputs):
        await context.think()
        while len(open_calls) >= context.plan.calls_in_flight or (open_calls and not context.wanted()):
            changed.clear()
            await changed.wait()
        if not context.wanted():
            return
        mine = [next(values) for _ in range(intent.records)]
        operation = context.history.begin(Kind.SEND, [(intent.partition, mine)])
        open_calls.add(operation)
        batch = Batch(encode_values(mine, context.now_ms()), len(mine), partial(done, operation, len(mine)))
        producer.send(partition_of(intent.partition), batch)


async def beginner(context: ClientContext) -> None:
    """Send a few batches at once, each time as a new producer."""
    values = generate.unique_values(context.number)
    partitions = itertools.cycle(context.inputs)
    while context.wanted():
        await context.think()
        producer = await SimProducer.begin(
            context.client, context.notes, delivery_s=context.rng.choice(context.plan.delivery_s)
        )
        partition, left = next(partitions), 3
        changed = asyncio.Event()

        def done(operation: int, base_offset: int, changed: asyncio.Event = changed) -> None:
            nonlocal left
            left -= 1
            outcome = Outcome.OK if base_offset >= 0 else Outcome.UNKNOWN
            context.history.end(operation, outcome, [[base_offset]])
            changed.set()

        for value in itertools.islice(values, left):
            operation = context.history.begin(Kind.SEND, [(partition, [value])])
            batch = Batch(encode_values([value], context.now_ms()), 1, partial(done, operation))
            producer.send(partition_of(partition), batch)
        while left:
            changed.clear()
            await changed.wait()


class Transactions:
    """Writes in transactions, one request at a time."""

    def __init__(self, context: ClientContext, transactional_id: str) -> None:
        self._context = context
        self._id = transactional_id
        self._identity = ProducerIdAndEpoch(-1, -1)
        self._next: dict[str, int] = {}
        self.is_used = False

    async def init(self) -> None:
        request = t.InitProducerIdRequest(self._id, TRANSACTION_TIMEOUT_MS)
        answer = await self._context.client.ask_until(Api.INIT_PRODUCER_ID, request, t.InitProducerIdResponse)
        self._reset(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))

    def _reset(self, identity: ProducerIdAndEpoch) -> None:
        self._identity, self._next, self.is_used = identity, {}, False

    async def send(self, partition: str, values: Sequence[int]) -> list[int]:
        """Send values; return their offsets. Raises SparklogError: the transaction has to be aborted."""
        self.is_used = True
        sequence = self._next.get(partition, 0)
        self._next[partition] = sequence + len(values)
        base_offset = await write(self._context, self._id, self._identity, sequence, partition, values)
        return list(range(base_offset, base_offset + len(values)))

    async def send_offsets(
        self, offsets: Mapping[str, int], group: str, member_id: str, epoch: int, *, once: bool = False
    ) -> None:
        """Send offsets to the transaction. `once`: do not repeat a request without an answer."""
        self.is_used = True
        committed = [g.CommittedOffset(*partition_of(p), o) for p, o in offsets.items()]
        request = g.TxnOffsetCommitRequest(self._id, *self._identity, group, committed, member_id, epoch)
        if once:
            answer, _ = await self._context.client.ask(Api.TXN_OFFSET_COMMIT, request, g.TxnOffsetCommitResponse)
        else:
            answer = await self._context.client.ask_until(Api.TXN_OFFSET_COMMIT, request, g.TxnOffsetCommitResponse)
        for result in answer.results:
            if result.error_code:
                raise error_from_code(result.error_code, result.message)

    async def end(self, *, commit: bool) -> None:
        if self.is_used:
            request = t.EndTxnRequest(self._id, *self._identity, commit)
            answer = await self._context.client.ask_until(Api.END_TXN, request, t.EndTxnResponse)
            self._reset(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))


async def write(
    context: ClientContext,
    transactional_id: str,
    identity: ProducerIdAndEpoch,
    sequence: int,
    partition: str,
    values: Sequence[int],
    keys: Sequence[bytes] = (),
) -> int:
    """Send one batch of a transaction until its outcome is known; return its base offset. Raises SparklogError."""
    payload = encode_values(values, context.now_ms(), keys)
    assign_producer(
        memoryview(payload),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = ProduceRequest(
        -1, PRODUCE_TIMEOUT_MS, [ProducePartition(*partition_of(partition), len(payload))], transactional_id
    )
    for _ in range(100):
        try:
            answer = await context.client.ask_until(Api.PRODUCE, request, ProduceResponse, bytes(payload))
            (result,) = answer.results
            if not result.error_code:
                return result.base_offset
            raise error_from_code(result.error_code, result.message)
        except OutOfOrderSequenceError as e:
            context.notes.refused(identity.producer_id, e)
            raise
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
    raise TransactionAbortedError("the batch was not stored in a hundred tries")


async def transactional(context: ClientContext) -> None:
    """Send in transactions, and abort some of them. The next life has the same transactional id and fences this one."""
    values = generate.unique_values(context.number)
    transactions = Transactions(context, f"transactional-{context.slot}")
    await transactions.init()
    for intent in generate.transactions(context.seed, context.number, context.inputs):
        if not context.wanted():
            return
        await context.think()
        operation = context.history.begin(Kind.TRANSACTION)
        acked: list[list[int]] = []
        commit = intent.commit
        try:
            for send in intent.sends:
                mine = [next(values) for _ in range(send.records)]
                context.history.sends(operation, [(send.partition, mine)])
                acked.append(await transactions.send(send.partition, mine))
        except SparklogError:
            commit = False
        await end_transaction(context, transactions, operation, acked, commit=commit)


async def end_transaction(
    context: ClientContext, transactions: Transactions, operation: int, acked: Sequence[Sequence[int]], *, commit: bool
) -> Outcome:
    context.history.ending(operation, commit=commit)
    outcome = Outcome.FAILED
    if commit:
        try:
            await transactions.end(commit=True)
        except TransactionAbortedError:
            pass
        except SparklogError as e:
            if e.retriable:
                raise  # the outcome is unknown; this life ends
            outcome = Outcome.UNKNOWN
        else:
            context.history.end(operation, Outcome.OK, acked)
            return Outcome.OK
    try:
        await transactions.end(commit=False)
        outcome = Outcome.FAILED
    except ProducerFencedError:
        raise
    except SparklogError:
        await transactions.init()
    context.history.end(operation, outcome)
    return outcome


async def reader(context: ClientContext, *, committed: bool = True) -> None:
    """Read all partitions, and sometimes again from the beginning."""
    names = [*context.inputs, *context.outputs]
    reader = SimReader(context.client, committed=committed)
    for intent in generate.polls(context.seed, context.number):
        if not context.wanted():
            return
        if intent.seek or not reader.positions:
            reader.assign({partition_of(p): 0 for p in names})
            note_assignment(context, dict.fromkeys(names, 0))
        await context.think()
        try:
            note_poll(context, polls_of(await reader.poll()))
            restarts = reader.take_restarts()
            if restarts:
                note_assignment(context, restarts)
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)


async def uncommitted(context: ClientContext) -> None:
    """Read everything, including records that will be aborted."""
    await reader(context, committed=False)


def polls_of(found: Mapping[TopicPartition, Sequence[Row]]) -> list[tuple[str, list[int], list[int]]]:
    return [(str(tp), [r.offset for r in rows], [int(r.value or b"") for r in rows]) for tp, rows in found.items()]


def note_assignment(context: ClientContext, offsets: Mapping[str, int]) -> None:
    context.history.end(context.history.begin(Kind.ASSIGN, offsets=offsets), Outcome.OK)


def note_poll(context: ClientContext, polls: Sequence[Any]) -> None:
    if polls:
        operation = context.history.begin(Kind.POLL)
        context.history.polls(operation, polls)
        context.history.end(operation, Outcome.OK)


async def ends(client: SimClient, partitions: Sequence[str], *, timestamp: int = -1) -> dict[str, int]:
    """Return the high watermarks, or the log starts for timestamp -2."""
    request = ListOffsetsRequest([ListOffsetsPartition(*partition_of(p), timestamp) for p in partitions])
    answer = await client.ask_until(Api.LIST_OFFSETS, request, ListOffsetsResponse)
    for result in answer.results:
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
    return {p: result.offset for p, result in zip(partitions, answer.results, strict=True)}


ROLES: dict[str, Role] = {
    "producer": producer,
    "beginner": beginner,
    "transactional": transactional,
    "reader": reader,
    "uncommitted": uncommitted,
}
