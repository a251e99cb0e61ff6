"""Shared transactions without Spark: a driver that numbers its batches, and tasks that fail, are repeated, and lose.

A directory takes the role of Spark's checkpoint: a file for every completed batch. The rows of a batch follow from its
number; their distribution over tasks does not, as in Spark. A life that finds an incomplete batch does it again,
regardless of the progress of the life before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import sparklog
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.transactions.shared_transaction import (
    LastCommit,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.environment.fault_points import reach
from tests.campaigns.checker.generate import VALUE_BITS
from tests.campaigns.checker.history import Kind, Operation, Outcome, Sent
from tests.campaigns.torture.client import Life, partition_of

ROWS_MAX = 12
TASKS_MAX = 3
TIMEOUT_MS = 60_000
FIRST_CLIENT = 1 << 20
"""Numbers above those of clients: values of batches belong to no life."""


AFTER_END = "shared.after-end"
"""The fault point between the end of a transaction and the note that the batch is done."""


class TaskFailedError(Exception):
    """A task fails because the plan says so."""


def rows_of(slot: int, batch: int, partitions: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The batch's values per partition."""
    rng = random.Random(f"rows/{slot}/{batch}")
    first = ((FIRST_CLIENT + slot) << VALUE_BITS) + batch * ROWS_MAX
    rows: dict[str, list[int]] = {}
    for value in range(first, first + rng.randint(1, ROWS_MAX)):
        rows.setdefault(rng.choice(partitions), []).append(value)
    return list(rows.items())


def checkpoint_of(history: Path, slot: int) -> Path:
    return history.parent.parent / f"checkpoint-{slot}"


def batches_done(checkpoint: Path) -> int:
    return len(list(checkpoint.glob("*.done"))) if checkpoint.exists() else 0


def operations(directory: Path, slot: int, partitions: Sequence[str]) -> Iterator[Operation]:
    """Yield the batches: a transaction each, of which the one after the last completed one may be there or not."""
    done = batches_done(checkpoint_of(directory / "any", slot))
    for batch in range(done + 1):
        outcome = Outcome.OK if batch < done else Outcome.UNKNOWN
        sent = tuple(
            Sent(partition, values, [-1] * len(values), [-1] * len(values))
            for partition, values in rows_of(slot, batch, partitions)
        )
        yield Operation(f"shared-{slot}", batch, Kind.TRANSACTION, outcome, commit_asked_ns=0, steps=sent)


def shared(life: Life) -> None:
    """The role: batches, one after another."""
    told, history = life.told, life.history
    checkpoint = checkpoint_of(Path(told.history), told.slot)
    checkpoint.mkdir(exist_ok=True)
    connections = cluster(told.bootstrap_servers)
    rng = random.Random(f"tasks/{told.seed}/{told.number}")
    run = 0
    with sparklog.Producer(told.bootstrap_servers, **told.settings) as client:
        for _ in life.while_wanted(iter(int, 1)):
            batch = batches_done(checkpoint)
            transaction = SharedTransaction(
                f"app-{told.slot}", batch, f"{told.name}-{run}", draw_fencing_token(connections)
            )
            committed_participants = _write(
                client, connections, transaction, rows_of(told.slot, batch, told.inputs), rng
            )
            if committed_participants is not None:
                commit = rng.random() < 0.9
                end_shared_transaction(
                    connections, transaction, committed=commit, committed_participants=committed_participants
                )
                if not commit:
                    run += 1  # what Spark does after an abort: the query fails and is started again
                    continue
            reach(AFTER_END)
            (checkpoint / f"{batch:06}.done").touch()
            history.end(history.begin(Kind.COMMIT), Outcome.OK)


def _write(
    client: sparklog.Producer,
    connections: Cluster,
    transaction: SharedTransaction,
    rows: list[tuple[str, list[int]]],
    rng: random.Random,
) -> list[int] | None:
    """The tasks of a batch, some of them more than once; the producer ids to commit. None: the batch is committed."""
    tasks: list[list[tuple[str, list[int]]]] = [[] for _ in range(rng.randint(1, TASKS_MAX))]
    for part in rows:
        rng.choice(tasks).append(part)
    committed_participants = []
    for task in tasks:
        for is_last in [*(False for _ in range(rng.choices([0, 1, 2], [6, 3, 1])[0])), True]:
            participant = join_shared_transaction(connections, transaction, timeout_ms=TIMEOUT_MS)
            if isinstance(participant, LastCommit):
                return None
            try:
                with client.participation(participant):
                    for partition, values in task:
                        tp = partition_of(partition)
                        for value in values:
                            client.send(tp.topic, str(value).encode(), partition=tp.partition)
                    if not is_last and rng.random() < 0.5:
                        raise TaskFailedError  # the others have written everything, and lose all the same
            except TaskFailedError:
                continue
            if is_last:
                committed_participants.append(participant.producer_id)
    return committed_participants
