"""`sparklog topic`: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli import completion
from sparklog.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    TopicName,
    Unasked,
    config_option,
    open_admin,
    parse_changes,
    parse_pairs,
)
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.settings import Scope, check, settings_of

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin, TopicDescription

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

_CREATE_EPILOG = """\
**Examples**

`sparklog topic create events --partitions 4`

`sparklog topic create trips --schema "id BIGINT, zone STRING, at TIMESTAMP, fare DECIMAL(8,2)" --key-columns zone --timestamp-column at`

`sparklog topic create flights --partitions 4 --schema flights.parquet --config segment.bytes=67108864`

Without --schema the topic is an *envelope* topic (key, value, headers, timestamp, as in Kafka); with --schema it is a
*typed* topic with your columns. `sparklog config topic` lists the settings for --config.
"""


@app.command("create", epilog=_CREATE_EPILOG)
def create(
    name: Annotated[str, typer.Argument(help="The topic's name: letters, digits, '.', '_' and '-'.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=10_000, help="Number of partitions (default: the broker's)."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Number of brokers that keep each partition (default: the cluster's)."),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="1:2:3,2:3:1", help="The brokers of each partition, the preferred leader first."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="F|DDL",
            help='Columns of a typed topic: a file (.json, .arrow, .parquet) or DDL: "a INT, b STRING".',
        ),
    ] = None,
    key_columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Columns whose values choose the partition; names with a comma in backquotes."
        ),
    ] = None,
    timestamp_column: Annotated[
        str | None, typer.Option(metavar="C", help="Column that holds the record's time.")
    ] = None,
    changelog: Annotated[
        bool,
        typer.Option(
            "--changelog",
            help="Rows are changes of the row with their key: compaction keeps the newest (cleanup.policy=compact), a row "
            "without values deletes.",
        ),
    ] = False,
    config: Annotated[list[str] | None, config_option(Scope.TOPIC, "A setting of the topic; repeatable.")] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic."""
    if changelog and schema is not None and not key_columns:
        raise typer.BadParameter("--changelog needs --key-columns: a change names its row by the key")
    if schema is None and (key_columns or timestamp_column):
        raise typer.BadParameter("--key-columns and --timestamp-column need --schema: an envelope topic has no columns")
    checked = check(Scope.TOPIC, parse_pairs(config or [], "--config"))
    if changelog:
        checked = {"cleanup.policy": "compact", **checked}
    from sparklog.cli.schema_source import load_schema
    from sparklog.format.column_names import column_names

    arrow_schema = None if schema is None else load_schema(schema)
    with open_admin(bootstrap_servers) as admin:
        topic = admin.create_topic(
            name,
            partitions=partitions,
            schema=arrow_schema,
            key_columns=column_names(key_columns or "", "--key-columns"),
            timestamp_column=timestamp_column,
            configs=checked,
            replication_factor=replication_factor,
            replica_assignment=_assignment(replica_assignment),
        )
    print(f"created {topic.kind} topic {topic.name} with {_plural(topic.partitions, 'partition')}")
    if timestamp_column:
        _warn_of_retention(topic)
    if arrow_schema is not None:
        _print_schema(topic)


def _assignment(text: str | None) -> list[list[int]] | None:
    if text is None:
        return None
    try:
        return [[int(broker) for broker in replicas.split(":")] for replicas in text.split(",")]
    except ValueError as e:
        raise typer.BadParameter(
            f"--replica-assignment {text!r}: brokers of a partition with ':', partitions with ',', as in 1:2:3,2:3:1"
        ) from e


@app.command("list", epilog="**Example**\n\n`sparklog topic list --verbose`")
def list_topics(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a table with kind, partitions and offsets.")
    ] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the topics, one name per line."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        names = admin.list_topics(include_internal=internal)
        if not names:
            print("no topics yet: create one with `sparklog topic create NAME`", file=sys.stderr)
        if not verbose:
            print("".join(f"{name}\n" for name in names), end="")
            return
        from sparklog.cli import console
        from sparklog.cli.offsets import partition_offsets

        table = console.table("topic", "kind", "partitions", "offsets", right=("partitions", "offsets"))
        for name in names:
            topic = admin.describe_topic(name)
            offsets = sum(p.offsets for p in partition_offsets(admin, topic, leaderless=True))
            table.add_row(name, topic.kind, console.number(topic.partitions), console.number(offsets))
        if names:
            console.stdout().print(table)


@app.command("describe", epilog="**Example**\n\n`sparklog topic describe flights`")
def describe(
    name: TopicName,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's columns, settings and partitions."""
    from sparklog.cli import console
    from sparklog.cli.offsets import offsets_table, partition_offsets

    with open_admin(bootstrap_servers) as admin:
        topic = admin.describe_topic(name)
        rows = partition_offsets(admin, topic, leaderless=True)
    print(f"topic       {topic.name}  ({topic.kind})")
    print(f"id          {topic.topic_id}")
    print(f"created     {console.time(topic.created_ms)}")
    print(f"partitions  {topic.partitions}")
    print(f"offsets     {console.number(sum(row.offsets for row in rows))}")
    if topic.key_columns:
        print(f"key         {', '.join(topic.key_columns)}")
    if topic.timestamp_column:
        print(f"timestamp   {topic.timestamp_column}")
    print("columns" if topic.kind == "envelope" else f"columns     (schema {topic.schema_id})")
    _print_schema(topic)
    print("settings")
    settings = settings_of(Scope.TOPIC)
    width = max(map(len, settings)) + 2
    for setting in settings.values():
        print(f"  {setting.name:<{width}}{topic.setting(setting.name)}{_origin(topic, setting.name)}")
    print()
    console.stdout().print(offsets_table(rows))
    for partition in topic.partition_details:
        if partition.write_error:
            print(f"partition {partition.partition} takes no records: {partition.write_error}")


_ALTER_EPILOG = """\
**Examples**

`sparklog topic alter trips --add-column "tip DECIMAL(8,2), vendor STRING"`

`sparklog topic alter trips --widen "passengers BIGINT"`

`sparklog topic alter trips --config retention.ms=-1 --delete-config segment.bytes`

New columns come last and are null in records that are stored already. A column can become wider (TINYINT, SMALLINT, INT, BIGINT;
FLOAT, DOUBLE) unless it is a key. Programs that write the old columns continue to work. Settings take effect at once.
"""


@app.command("alter", epilog=_ALTER_EPILOG)
def alter(
    name: TopicName,
    add_column: Annotated[
        list[str] | None, typer.Option(metavar="DDL", help='Columns to append: "c INT, d STRING"; repeatable.')
    ] = None,
    widen: Annotated[
        list[str] | None, typer.Option(metavar="DDL", help='Columns with their wider type: "n BIGINT"; repeatable.')
    ] = None,
    config: Annotated[list[str] | None, config_option(Scope.TOPIC, "A setting to change; repeatable.")] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K",
            help="A setting to reset to its default; repeatable.",
            autocompletion=completion.setting_names(Scope.TOPIC),
        ),
    ] = None,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic's columns and settings."""
    import sys

    configs = parse_changes(config or [], delete_config or [], "--config", "--delete-config")
    if not (add_column or widen or configs):
        raise typer.BadParameter("nothing to change: give --config, --delete-config, --add-column or --widen")
    from sparklog.format.ddl import parse_ddl
    from sparklog.format.schema_evolution import SchemaChange
    from sparklog.metadata.store import changed_columns

    added, widened = (None if not texts else parse_ddl(", ".join(texts)) for texts in (add_column, widen))
    with open_admin(bootstrap_servers) as admin:
        before = admin.describe_topic(name)
        if configs and (added or widened):  # check the columns before changing a setting
            columns = before.key_columns, before.timestamp_column
            changed_columns(name, before.kind, before.schema, SchemaChange(added, widened), *columns)
        if widened and not yes:
            names = before.schema.names
            _confirm_widening(before, [f.name for f in widened if f.name in names and before.schema.field(f.name) != f])
        if configs:
            _alter_configs(admin, name, configs)
        if not (added or widened):
            return
        try:
            topic = admin.alter_schema(name, add_columns=added, widen_columns=widened)
        except SparklogError:
            if configs:
                print("the settings above are changed, but not the columns", file=sys.stderr)
            raise
    if topic.schema_id == before.schema_id:
        print(f"topic {name} has these columns already (schema {topic.schema_id})")
    else:
        print(f"topic {name} has schema {topic.schema_id} now")
    _print_schema(topic)
    for hint in _query_hints(before, topic):
        print(hint, file=sys.stderr)


def _confirm_widening(topic: TopicDescription, columns: list[str]) -> None:
    """Ask before a change that pauses the topic's Delta table. Raises InvalidConfigError if there is no terminal."""
    import sys

    location = topic.setting("lake.location")
    if not location or not columns:
        return
    text = (
        f"topic {topic.name} has a Delta table at {location}, which pauses when {', '.join(columns)} becomes wider, unless "
        "it is in a directory and has delta.enableTypeWidening = true. Afterwards 'sparklog lake rebuild "
        f"{topic.name} --keep-rows' makes the table's columns wider: it writes all its files again"
    )
    if not sys.stdin.isatty():
        raise InvalidConfigError(f"{text}; nothing is changed: use --yes to change the columns")
    print(text, file=sys.stderr)
    typer.confirm(f"Make {', '.join(columns)} wider?", abort=True)


def _query_hints(before: TopicDescription, after: TopicDescription) -> list[str]:
    """Return advice for streaming queries that continue from their checkpoints after a change of columns."""
    from sparklog.format.ddl import ddl_type

    hints = []
    for field in before.schema:
        if after.schema.field(field.name).type != field.type:
            cast = f'.withColumn("{field.name}", col("{field.name}").cast("{ddl_type(field.type)}"))'
            hints.append(
                f"a streaming query that reads {field.name} stops, and continues with the new type after a restart; "
                f"if it keeps state with the column (groupBy, dropDuplicates, max, a join), read it as before: {cast}"
            )
    if len(after.schema) > len(before.schema):
        hints.append(
            "a streaming query reads new columns when it is started again; if it keeps state of all columns "
            "(dropDuplicates() without names), select() those from before; if it writes a Delta table, set mergeSchema "
            "to true"
        )
    return hints


def _warn_of_retention(topic: TopicDescription) -> None:
    """Warn that retention deletes records by the topic's timestamp column: old data that are loaded would vanish."""
    import sys

    retention_ms = topic.setting("retention.ms")
    deletes = "delete" in str(topic.setting("cleanup.policy")).split(",")
    by_column = topic.setting("message.timestamp.type") == "CreateTime"
    if not deletes or not by_column or "retention.ms" in topic.configs or not isinstance(retention_ms, int):
        return
    if retention_ms >= 0:
        older = f"records whose {topic.timestamp_column} is older than {retention_ms / 86_400_000:g} days"
        print(f"{older} will be deleted; --config retention.ms=-1 keeps them", file=sys.stderr)


def _alter_configs(admin: Admin, name: str, changes: dict[str, str | None]) -> None:
    topic = admin.alter_topic(name, changes)
    for key in changes:
        print(f"{key} = {topic.setting(key)}{_origin(topic, key)}")


def _origin(topic: TopicDescription, setting: str) -> str:
    if setting in topic.configs:
        return ""
    return "  (broker's default)" if setting in topic.broker_defaults else "  (default)"


_ADD_PARTITIONS_EPILOG = """\
**Example**

`sparklog topic add-partitions trips --partitions 8`

--partitions is the new number of partitions; it can only grow. Stored records stay in their partitions. The next records
of a key may go to another partition than earlier ones: the order of a key is kept only within a partition.
"""


@app.command("add-partitions", epilog=_ADD_PARTITIONS_EPILOG)
def add_partitions(
    name: TopicName,
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", min=1, max=10_000, help="The new number of partitions."),
    ],
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions to a topic."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        topic = admin.describe_topic(name)
        warning = _moved_keys(topic) if partitions > topic.partitions else ""
        if warning:
            print(warning, file=sys.stderr)
            if not yes and sys.stdin.isatty():
                typer.confirm(f"Give topic {name} {partitions} partitions instead of {topic.partitions}?", abort=True)
        grown = admin.add_partitions(name, partitions)
    print(f"topic {name} now has {_plural(grown.partitions, 'partition')} instead of {topic.partitions}")


def _moved_keys(topic: TopicDescription) -> str:
    """Return a warning about the order of keys after adding partitions; "" if the topic has no keys."""
    if topic.kind != "envelope" and not topic.key_columns:
        return ""
    keys = f"keys ({', '.join(topic.key_columns)})" if topic.key_columns else "keys"
    text = f"warning: the next records of most {keys} go to another partition than those before, and may be read before them"
    if "compact" in str(topic.setting("cleanup.policy")).split(","):
        text += (
            "\nwarning: the topic is compacted within each partition: the old partition of a moved key keeps its "
            "last record forever; to avoid this, copy the records into a new topic"
        )
    return text


@app.command("delete", epilog="**Example**\n\n`sparklog topic delete events --yes`")
def delete(
    name: TopicName,
    yes: Unasked = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic with all its data."""
    import sys

    with open_admin(bootstrap_servers) as admin:
        topic = admin.describe_topic(name)
        if not yes and sys.stdin.isatty():
            typer.confirm(
                f"Delete topic {name} with {_plural(topic.partitions, 'partition')} and all its data?", abort=True
            )
        admin.delete_topic(name)
    print(f"deleted topic {name}")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _print_schema(topic: TopicDescription) -> None:
    from sparklog.format.ddl import ddl_type

    width = max((len(n) for n in topic.schema.names), default=0)
    for field in topic.schema:
        print(f"  {field.name:<{width}}  {ddl_type(field.type)}")
