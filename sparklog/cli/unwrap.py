"""`sparklog unwrap`: writes the changed rows of a database's change events into a keyed topic."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.cli import completion
from sparklog.cli.client_command import client_security
from sparklog.cli.option_groups import with_groups
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, parse_list, parse_pairs, parse_settings
from sparklog.settings import Scope

if TYPE_CHECKING:
    from sparklog.cli.unwrap_worker import UnwrapPlan
    from sparklog.errors import DeserializationError

EPILOG = """\
**Examples**

`sparklog unwrap --from server.db.accounts --to accounts`

`sparklog unwrap --from server.db.accounts --to accounts --registry http://127.0.0.1:8081`

`sparklog unwrap --from server.db.accounts --to accounts --schema "id BIGINT, balance DECIMAL(10,2)" --key-columns id
--connector decimal.handling.mode=string --once`

**The target** has the columns of the events, the key columns of the records' keys, and `_op`; it is created if it does
not exist. Columns that the events add later are added, and wider types widen a column. With `--schema` it has these
columns alone.

**Exactly once**: rows and offsets are committed together. A worker that is killed is continued by the next one with the
same `--group`; several workers share the partitions.

**An event that cannot become a row ends the command**, with its offset, column and reason. Nothing is left out without a
word: mend the cause, and start it again.
"""


class Truncate(StrEnum):
    """Treatments of truncations."""

    error = "error"
    skip = "skip"


class EventOptions(NamedTuple):
    """Options for reading the events, and for the columns of the rows."""

    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            envvar="SPARKLOG_SCHEMA_REGISTRY_URL",
            metavar="URL",
            help="Schema registry, for events in Avro, or in JSON with the id of a schema.",
        ),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="Columns of the rows (default: those of the events)."),
    ] = None
    key_columns: Annotated[
        str | None,
        typer.Option(
            "--key-columns", metavar="NAMES", help="Key columns of a new target (default: the records' keys)."
        ),
    ] = None
    connector: Annotated[
        list[str] | None,
        typer.Option(
            "--connector", metavar="NAME=VALUE", help="A setting of the connector, such as decimal.handling.mode."
        ),
    ] = None
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="COLUMN=NAME", help="Debezium's type of a column, for events without a schema part."
        ),
    ] = None
    truncate: Annotated[Truncate, typer.Option(help="Refuse events of TRUNCATE, or leave them out.")] = Truncate.error


@with_groups
def unwrap(
    source: Annotated[
        str,
        typer.Option("--from", metavar="TOPIC", help="Topic with Debezium's events.", autocompletion=completion.topics),
    ],
    target: Annotated[
        str,
        typer.Option("--to", metavar="TOPIC", help="Keyed topic for the rows.", autocompletion=completion.topics),
    ],
    events: EventOptions = EventOptions(),  # noqa: B008
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Group that keeps the offsets (default: unwrap-TO).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the present events are unwrapped.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write the changed rows of Debezium's events into a keyed topic, exactly once."""
    from functools import partial

    from sparklog.cli.errors import report
    from sparklog.cli.registry_client import open_registry, schema_of
    from sparklog.cli.unwrap_worker import UnwrapWorker
    from sparklog.cli.worker_process import run_worker
    from sparklog.errors import DeserializationError

    plan = _plan(source, target, group or f"unwrap-{target}", events)
    parameters = {"producer": parse_settings(Scope.PRODUCER, None), "consumer": parse_settings(Scope.CONSUMER, None)}
    registry = None if events.registry is None else open_registry(events.registry, bootstrap_servers)
    schemas = None if registry is None else partial(schema_of, registry)

    def worker() -> UnwrapWorker:
        return UnwrapWorker(plan, bootstrap_servers, client_security(), schemas, parameters)

    try:
        run_worker(worker, None, once=once, end_with_parent=False)
    except DeserializationError as e:
        report(e.name, str(e), _next_step(e, plan.source, plan.group))
        raise typer.Exit(1) from None


def _plan(source: str, target: str, group: str, events: EventOptions) -> UnwrapPlan:
    """Return the checked options. Raises typer.BadParameter and SparklogError."""
    from sparklog.cli.unwrap_worker import UnwrapPlan, rows_schema
    from sparklog.debezium.changes import OPERATION_COLUMN
    from sparklog.debezium.forms import hints_of
    from sparklog.format.ddl import parse_ddl

    columns = None if events.schema is None else parse_ddl(events.schema)
    if columns is not None and OPERATION_COLUMN in columns.names:
        columns = rows_schema(columns)
    hints = hints_of(parse_pairs(events.connector or [], "--connector"), parse_pairs(events.type or [], "--type"))
    return UnwrapPlan(
        source, target, group, hints, columns, tuple(parse_list(events.key_columns)), events.truncate.value
    )


def _next_step(error: DeserializationError, source: str, group: str) -> str:
    """Return what the user can do about a record that cannot become a row."""
    step = "mend the cause and start again; schema=, types=, connector=, truncate= stand for options of the same names"
    if error.partition is None:
        return step
    partition = error.partition[1]
    return (
        f"{step}. `sparklog consume {source} -p {partition} --from {error.offset} -n 1` shows the record, and `sparklog "
        f"group reset-offsets {group} --topic {source}:{partition} --to-offset {error.offset + 1} --execute` leaves it out"
    )
