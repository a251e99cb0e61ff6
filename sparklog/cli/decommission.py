"""`sparklog broker decommission`: moves all replicas off a broker, so that the broker can be removed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin
from sparklog.cli.reassign import Throttle, assignment
from sparklog.cli.sizes import parse_size_bytes
from sparklog.errors import InvalidReplicationFactorError, RequestTimedOutError, SparklogError
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin

EPILOG = """\
**Examples**

`sparklog broker decommission 3 --throttle 50MB`

`sparklog broker decommission 3 --cancel`

From now on the broker gets no new replicas. Its replicas are copied to other brokers and then deleted; replicas on other
brokers do not move. After Ctrl-C, run the command again to continue. The command is refused, and moves nothing, if a
topic could not keep its replication factor.
"""

ROUNDS_MAX = 100


def decommission(
    broker_id: Annotated[int, typer.Argument(min=0, help="The broker's number.")],
    throttle: Throttle = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the broker: it gets replicas again.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move all replicas off a broker, so that it can be stopped for good."""
    limit = None if throttle is None else parse_size_bytes(throttle, "--throttle")
    with open_admin(bootstrap_servers) as admin:
        if cancel:
            _cancel(admin, broker_id)
            return
        moves = plan(admin, broker_id)  # before the cordon, so that a refusal changes nothing
        admin.cordon_broker(broker_id)
        try:
            _drain(admin, broker_id, moves, limit)
        except KeyboardInterrupt:
            print(f"\nthe moves continue: sparklog broker decommission {broker_id} follows them", file=sys.stderr)
            raise
        except SparklogError:
            print(
                f"broker {broker_id} gets no new replicas, and the accepted moves continue: run the command again to "
                f"continue, or with --cancel to undo it",
                file=sys.stderr,
            )
            raise
    print(f"broker {broker_id} has no partitions left: it can be stopped")


def plan(admin: Admin, broker_id: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the new replicas of each partition of the broker. Raises typer.BadParameter for an unknown broker, and if
    the broker is down and has the only replica of a partition. Raises InvalidReplicationFactorError if too few brokers
    remain."""
    from sparklog.replication.controller.moves import plan_moves

    cluster = admin.describe_cluster()
    present = {b.broker_id for b in cluster.brokers}
    if broker_id not in present and broker_id not in cluster.missing:
        raise typer.BadParameter(f"broker {broker_id} does not exist; the brokers are {sorted(present)}")
    others = {
        b.broker_id: b.rack
        for b in cluster.brokers
        if b.broker_id != broker_id and not b.is_stopping and not b.is_cordoned
    }
    current = assignment(admin)
    mine = {tp: replicas for tp, replicas in current.items() if broker_id in replicas}
    only_here = [tp for tp, replicas in mine.items() if broker_id not in present and replicas == (broker_id,)]
    if only_here:
        raise typer.BadParameter(
            f"broker {broker_id} is down, and no other broker has {', '.join(map(str, only_here[:5]))}: start it first, or "
            f"delete the topics"
        )
    staying = {r for replicas in mine.values() for r in replicas if r != broker_id}
    try:
        moves = plan_moves(mine, others, staying=staying, balanced=False)
    except InvalidReplicationFactorError as e:
        raise InvalidReplicationFactorError(
            f"broker {broker_id} cannot be decommissioned: {e}; start another broker, or lower the replication factor with "
            f"sparklog reassign plan --replication-factor N"
        ) from e
    return moves


def _drain(
    admin: Admin, broker_id: int, moves: dict[TopicPartition, tuple[int, ...]], throttle_bytes: int | None
) -> None:
    from sparklog.cli.reassignment_progress import follow

    for _ in range(ROUNDS_MAX):
        if moves:
            print(f"{len(moves)} partitions leave broker {broker_id}", file=sys.stderr)
            admin.alter_partition_reassignments(moves, throttle_bytes=throttle_bytes)
        follow(admin)
        moves = plan(admin, broker_id)  # topics may have been created on the broker before its cordon
        if not moves:
            return
    raise RequestTimedOutError(
        f"{len(moves)} partitions are still on broker {broker_id} after {ROUNDS_MAX} rounds of moves: another operator "
        "cancels the moves or adds replicas to the broker"
    )


def _cancel(admin: Admin, broker_id: int) -> None:
    leaving = [r.topic_partition for r in admin.list_partition_reassignments() if broker_id in r.removing]
    admin.cordon_broker(broker_id, cordoned=False)  # first, so that a refusal leaves the moves running
    admin.cancel_partition_reassignments(leaving)
    print(f"broker {broker_id} stays, and so do {len(leaving)} partitions that were being moved")
