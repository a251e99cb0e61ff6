"""`sparklog transaction`: shows transactions, and aborts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli import completion
from sparklog.cli.durations import parse_duration_ms
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin
from sparklog.errors import one_line

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.protocol.transaction_messages import TransactionDetails

app = typer.Typer(
    no_args_is_help=True,
    help="Show transactions, and abort hanging ones.",
    epilog="""\
**Where to begin** when a reader with `isolation.level=read_committed` makes no progress:

`sparklog transaction list --state Ongoing --running-for 10m` shows long transactions; `abort ID` ends one.

`sparklog transaction find-hanging` shows transactions that are open in a partition and unknown to every coordinator.
""",
)

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@app.command("list", epilog="**Example**\n\n`sparklog transaction list --state Ongoing --running-for 10m`")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help=f"Only these states: {', '.join(STATES)}; repeatable.")
    ] = None,
    running_for: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only transactions open for at least this time: 90s, 10m, 2h.")
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the transactional ids and applications with their states."""
    import sys
    import time

    states = [_state(text) for text in state or []]
    running_ms = 0 if running_for is None else parse_duration_ms(running_for)
    with open_admin(bootstrap_servers) as admin:
        transactions = admin.list_transactions(states, running_ms)
    if not transactions:
        print("no such transactions", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table(
        "id", "kind", "state", "version", "producer", "open for", right=("version", "producer", "open for")
    )
    now_ms = time.time_ns() // 1_000_000
    for t in transactions:
        open_for = "-" if t.started_ms < 0 else f"{max(0, now_ms - t.started_ms) / 1000:.1f} s"
        version = "-" if t.version < 0 else str(t.version)
        producer = "-" if t.producer_id < 0 else f"{t.producer_id}, epoch {t.producer_epoch}"
        table.add_row(t.transactional_id, t.kind, t.state, version, producer, open_for)
    console.stdout().print(table)


@app.command("describe", epilog="**Example**\n\n`sparklog transaction describe my-transactional-id`")
def describe(
    id: Annotated[
        str,
        typer.Argument(
            help="A transactional id, or the id of an application (a Spark query).",
            autocompletion=completion.transactional_ids,
        ),
    ],
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show one transaction and the partitions it has written to."""
    from sparklog.cli import console

    with open_admin(bootstrap_servers) as admin:
        transaction = _describe(admin, id)
    summary = transaction.summary
    assert summary is not None
    print(f"id              {transaction.transactional_id}  ({summary.kind})")
    print(f"state           {summary.state}")
    if summary.kind == "shared":
        print(f"version         {summary.version if summary.version >= 0 else '-'}")
        print(f"run             {one_line(summary.run_id) or '-'}")
        print(
            f"last committed  {transaction.last_committed_version if transaction.last_committed_version >= 0 else '-'}"
        )
    else:
        print(f"producer        {summary.producer_id}, epoch {summary.producer_epoch}")
    print(f"open since      {console.time(summary.started_ms)}")
    print(
        f"timeout         {console.number(summary.timeout_ms)} ms" if summary.timeout_ms >= 0 else "timeout         -"
    )
    if transaction.partitions:
        print()
        table = console.table("topic", "partition", "producer", right=("partition", "producer"))
        for p in transaction.partitions:
            table.add_row(p.topic, str(p.partition), str(p.producer_id))
        console.stdout().print(table)


_ABORT_EPILOG = """\
**Examples**

`sparklog transaction abort my-transactional-id`

`sparklog transaction abort --topic events --partition 3 --producer-id 4711` (a hanging one, see `find-hanging`)

Readers of committed records never see the records of the transaction. The producer gets an error at its next call.
"""


@app.command("abort", epilog=_ABORT_EPILOG)
def abort(
    id: Annotated[
        str | None,
        typer.Argument(
            help="A transactional id, or the id of an application.", autocompletion=completion.transactional_ids
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Of a hanging transaction.", autocompletion=completion.topics)
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Of a hanging transaction.")] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, help="Of a hanging transaction.")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of an id, or a hanging one in a partition."""
    from sparklog.types import TopicPartition

    hanging = (topic, partition, producer_id)
    with open_admin(bootstrap_servers) as admin:
        if id is not None and hanging == (None, None, None):
            count = admin.abort_transaction(_describe(admin, id).transactional_id)
            print(f"aborted the transaction of {id}: {count} partition{'' if count == 1 else 's'}")
        elif id is None and topic is not None and partition is not None and producer_id is not None:
            admin.abort_hanging_transaction(TopicPartition(topic, partition), producer_id)
            print(f"aborted the transaction of producer {producer_id} in {topic} partition {partition}")
        else:
            raise typer.BadParameter("give an ID, or --topic, --partition and --producer-id together")


_HANGING_EPILOG = """\
**Example**

`sparklog transaction find-hanging --topic events`

None should exist: the broker verifies every transaction before its first record is written, and aborts unknown ones at its
start.
"""


@app.command("find-hanging", epilog=_HANGING_EPILOG)
def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="Only in this topic; repeatable (default: all).", autocompletion=completion.topics
        ),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a partition and unknown to every coordinator."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        hanging = admin.find_hanging_transactions(topic or None)
    if not hanging:
        print("no hanging transactions", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table(
        "topic", "partition", "producer", "first offset", "last write", right=("partition", "producer", "first offset")
    )
    for (name, number), producer in hanging:
        written = console.time(producer.last_timestamp_ms)
        table.add_row(name, str(number), str(producer.producer_id), str(producer.transaction_first_offset), written)
    console.stdout().print(table)
    (name, number), producer = hanging[0]
    print(
        f"end the first one with: sparklog transaction abort --topic {name} --partition {number} "
        f"--producer-id {producer.producer_id}",
        file=sys.stderr,
    )


def _state(text: str) -> str:
    for state in STATES:
        if state.lower() == text.strip().lower():
            return state
    raise typer.BadParameter(f"{text!r}: a state is one of {', '.join(STATES)}")


def _describe(admin: Admin, id: str) -> TransactionDetails:
    """Return the transaction of a transactional id, else of the application with this id. Raises
    InvalidProducerIdMappingError if there is neither."""
    from sparklog.errors import InvalidProducerIdMappingError
    from sparklog.types import SHARED_PREFIX, shared_transactional_id

    try:
        return admin.describe_transaction(id)
    except InvalidProducerIdMappingError:
        if id.startswith(SHARED_PREFIX):
            raise
        try:
            return admin.describe_transaction(shared_transactional_id(id))
        except InvalidProducerIdMappingError as e:
            raise InvalidProducerIdMappingError(
                f"unknown transactional id or application {id!r}; `sparklog transaction list` shows them"
            ) from e
