"""Shared transactions in a life, in the way of Spark's sink."""

from __future__ import annotations

import random

from sparklog.errors import SparklogError
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.types import ProducerIdAndEpoch, shared_transactional_id
from tests.campaigns.torture.shared import rows_of
from tests.simulation.notes import SharedEnd
from tests.simulation.sim_roles import TRANSACTION_TIMEOUT_MS, ClientContext, Role, write


async def shared(context: ClientContext) -> None:
    """Run shared transactions in the way of Spark's sink: numbered batches, with tasks that fail, are repeated, and
    lose."""
    rng = random.Random(f"tasks/{context.seed}/{context.number}")
    run = 0
    while context.wanted():
        await context.think()
        batch = context.done_batches.get(context.slot, 0)
        draw = t.InitProducerIdRequest(fencing_token=True)
        drawn = await context.client.ask_until(Api.INIT_PRODUCER_ID, draw, t.InitProducerIdResponse)
        key = (f"app-{context.slot}", batch, f"{context.number}-{run}", drawn.producer_id)
        try:
            if await _write_batch(context, key, batch, rng):
                context.done_batches[context.slot] = max(
                    batch + 1, context.done_batches.get(context.slot, 0)
                )  # a file per batch
        except SparklogError:
            run += 1  # as in Spark: the query fails and is started again


async def _write_batch(context: ClientContext, key: tuple[str, int, str, int], batch: int, rng: random.Random) -> bool:
    """Write a batch. Returns True if it is committed, now or earlier. Raises SparklogError."""
    tasks: list[list[tuple[str, list[int]]]] = [[] for _ in range(rng.randint(1, 3))]
    for rows in rows_of(context.slot, batch, context.inputs):
        rng.choice(tasks).append(rows)
    committed_participants = []
    for task in tasks:
        for is_last in [*(False for _ in range(rng.choices([0, 1, 2], [6, 3, 1])[0])), True]:
            request = t.JoinSharedTxnRequest(*key, TRANSACTION_TIMEOUT_MS)
            joined = await context.client.ask_until(Api.JOIN_SHARED_TXN, request, t.JoinSharedTxnResponse)
            context.notes.joined(key[0], key[2], key[3])
            if joined.committed:
                return True
            identity = ProducerIdAndEpoch(joined.producer_id, joined.producer_epoch)
            for partition, values in task:
                names = [f"{key[0]}/{batch}/{key[3]}/{identity.producer_id}/{value}".encode() for value in values]
                await write(context, shared_transactional_id(key[0]), identity, 0, partition, values, names)
            if is_last:
                committed_participants.append(identity.producer_id)
    end = t.EndSharedTxnRequest(*key, rng.random() < 0.9, committed_participants)
    context.notes.ends(SharedEnd(key[0], batch, key[2], key[3], end.committed, frozenset(committed_participants)))
    return (await context.client.ask_until(Api.END_SHARED_TXN, end, t.EndSharedTxnResponse)).committed


ROLES: dict[str, Role] = {"shared": shared}
