"""`sparklog mirror`: copies the topics of a Kafka or sparklog cluster, with the same offsets."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.mirror_plan import HELD, REASON_CHARS_MAX, print_plan
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TableFormat, open_admin, timeout_ms

if TYPE_CHECKING:
    from sparklog.client.admin.mirror_description import MirrorDescription, MirrorPartition

app = typer.Typer(help="Mirror topics of a Kafka or sparklog cluster, with the same offsets.", no_args_is_help=True)

ALL_TOPICS = ".*"
MirrorName = Annotated[str, typer.Argument(help="The mirror's name.")]


class ValueFormat(StrEnum):
    """The formats of values that become columns."""

    json = "json"
    avro = "avro"
    protobuf = "protobuf"
    json_schema = "json-schema"


class KeyFormat(StrEnum):
    """The formats of keys with schemas."""

    avro = "avro"
    protobuf = "protobuf"
    json_schema = "json-schema"


_CREATE_EPILOG = """\
**Examples**

`sparklog mirror create old --source kafka://old:9092 --topics 'orders,logs-.*' --groups '.*' --dry-run`

`sparklog mirror create old --source kafka://old:9092 --topics 'orders,logs-.*' --groups '.*'`

`sparklog mirror create old --source kafka://old:9093 --topics '.*' --source-config /etc/sparklog/old.properties`

`sparklog mirror create berlin --source sparklog://berlin:9092 --topics '.*' --groups '.*'`

Expressions match whole names. The topics of a sparklog cluster keep their columns. The file has the settings of a Kafka client, such as `security.protocol=SASL_SSL`,
`ssl.ca.location`, `sasl.mechanism`, `sasl.username` and `sasl.password=${file:/run/secrets/old}`; it is at this path on
the hosts of all mirror workers.

`sparklog mirror create old --source kafka://old:9092 --topics orders --value-format json --ddl 'id BIGINT, item STRING'`

`… --topics 'orders,stock' --value-format json --ddl 'orders=id BIGINT, item STRING' --key-columns orders=id --ddl
'stock=item STRING, pieces INT'`

`… --topics 'orders,stock' --value-format avro --registry http://registry:8081 --key-columns stock=item`

`… --topics accounts --value-format avro --key-format avro --registry http://registry:8081`

With `--value-format` the topics have columns: those of `--ddl`, or of the newest schema in the registry (Avro,
Protobuf), whose later columns are added. Records that do not fit are rows of `<topic>.refused`; `sparklog refused
list` shows them.

**The way of a topic**: `create` makes it here, read-only. A worker copies its records with their offsets, and the
groups' offsets. Readers can move at any time. When the producers have stopped, `promote` opens the topic for writers.
"""


Pattern = Annotated[str, typer.Option(metavar="PATTERN", help="Expressions of topics, separated by commas.")]
Groups = Annotated[str | None, typer.Option(metavar="PATTERN", help="Expressions of groups whose offsets are copied.")]
SourceConfig = Annotated[str | None, typer.Option(metavar="FILE", help="Client settings for the source: TLS, login.")]
Values = Annotated[ValueFormat | None, typer.Option(help="Format of the values, which become columns of typed topics.")]
Ddl = Annotated[
    list[str] | None,
    typer.Option(
        "--ddl",
        "--schema",
        metavar="[PATTERN=]F|DDL",
        help='Columns of typed topics: a file (.json, .arrow, .parquet) or DDL: "a INT, b STRING"; repeatable.',
    ),
]
KeyColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="[PATTERN=]A,B", help="Columns that the keys fill, by the patterns of --ddl; repeatable."),
]
KeyFormatOption = Annotated[
    KeyFormat | None,
    typer.Option(help="Format of keys with schemas, whose fields are key columns (default: text or JSON)."),
]
Registry = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="SPARKLOG_SCHEMA_REGISTRY_URL", help="Registry with the schemas."),
]
DropHeaders = Annotated[
    bool, typer.Option("--drop-headers", help="Leave out headers; otherwise records with headers are refused.")
]
RefusedMax = Annotated[
    int | None,
    typer.Option(min=-1, help="Refused records of a topic before it pauses; -1: no limit (default: 10,000)."),
]
Throttle = Annotated[
    str | None, typer.Option(metavar="BYTES/S", help="Largest rate of one worker, such as 50MB/s (default: none).")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show topics, sizes, settings and groups, try some records, and create nothing."),
]


@app.command("create", epilog=_CREATE_EPILOG)
def create(
    name: MirrorName,
    source: Annotated[
        str, typer.Option(metavar="URL", help="kafka://HOST:PORT or sparklog://HOST:PORT, several brokers with commas.")
    ],
    topics: Pattern,
    groups: Groups = None,
    source_config: SourceConfig = None,
    value_format: Values = None,
    ddl: Ddl = None,
    key_columns: KeyColumns = None,
    key_format: KeyFormatOption = None,
    registry: Registry = None,
    drop_headers: DropHeaders = False,
    refused_max: RefusedMax = None,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    format: Annotated[TableFormat, typer.Option(help="Output format of --dry-run.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create the topics of another cluster here, for a mirror worker that fills them."""
    from sparklog.cli.sizes import parse_size_bytes

    options: dict[str, Any] = {
        "source": source,
        "topics": topics,
        "groups": groups,
        "source_config": source_config,
        "value_format": None if value_format is None else value_format.value,
        "columns": _columns(ddl or []),
        "key_columns": _key_columns(key_columns or []),
        "key_format": None if key_format is None else key_format.value,
        "registry": registry if key_format is not None or value_format not in (None, ValueFormat.json) else None,
        "drop_headers": drop_headers,
        "bytes_per_second": 0 if throttle is None else parse_size_bytes(throttle, "--throttle"),
    }
    if dry_run:
        _plan(bootstrap_servers, name, options, refused_max, format)
        return
    with open_admin(bootstrap_servers) as admin:
        mirror = admin.create_mirror(name, refused_max=refused_max, **options)
    count = len(mirror.topics)
    print(
        f"mirror {name} has {count} {'topic' if count == 1 else 'topics'}; `sparklog mirror status {name}` shows them"
    )


def _plan(
    bootstrap_servers: str, name: str, options: dict[str, Any], refused_max: int | None, format: TableFormat
) -> None:
    """Ask the source, and print the topics that the mirror would create."""
    from sparklog.client.admin.mirror_admin import check_refused_max, mirror_definition
    from sparklog.client.admin.mirror_estimate import estimate_mirror
    from sparklog.client.admin.mirror_groups import chosen_groups
    from sparklog.client.admin.mirror_plan import open_source, plan_mirror, require_topics
    from sparklog.client.admin.mirror_targets import planned_target
    from sparklog.client.net.cluster import cluster

    definition = mirror_definition(name, **options)
    check_refused_max(definition, refused_max)
    here = cluster(bootstrap_servers, client_security()).topic_infos(timeout_ms=timeout_ms())
    source = open_source(definition, timeout_ms())
    try:
        require_topics(definition, source, here)
        plan = plan_mirror(definition, source, here)
        topics = {topic.name: topic for topic in plan.topics}
        estimate = estimate_mirror(
            source, topics, lambda name: planned_target(definition, topics[name]) if definition.is_typed else None
        )
        groups = chosen_groups(definition, source)
    finally:
        source.close()
    print_plan(plan, estimate.within(definition.bytes_per_second), definition.groups, groups, format)


def _columns(texts: list[str]) -> dict[str, Any]:
    from sparklog.cli.schema_source import load_schema

    return {pattern: load_schema(text) for pattern, text in _by_patterns(texts, "--ddl")}


def _key_columns(texts: list[str]) -> dict[str, list[str]]:
    from sparklog.format.column_names import column_names

    return {pattern: column_names(text, "--key-columns") for pattern, text in _by_patterns(texts, "--key-columns")}


def _by_patterns(texts: list[str], option: str) -> list[tuple[str, str]]:
    """Return the patterns of topics with their texts. Raises BadParameter for a pattern with two texts."""
    pairs = [_by_pattern(text) for text in texts]
    patterns = [pattern for pattern, _ in pairs]
    for pattern, text in pairs:
        if patterns.count(pattern) > 1:
            topics = "all topics" if pattern == ALL_TOPICS else f"the topics {pattern!r}"
            raise typer.BadParameter(
                f"{option} {text!r}: {topics} have two values of this option. Give all columns in one value, or the "
                f"topics of each: {option} 'PATTERN=…'"
            )
    return pairs


def _by_pattern(text: str) -> tuple[str, str]:
    """Return the pattern of topics and the rest of `[PATTERN=]REST`. A quoted name can contain =."""
    pattern, mark, rest = text.partition("=")
    return (pattern, rest) if mark and not re.search(r"[`\s]", pattern) else (ALL_TOPICS, text)


_STATUS_EPILOG = """\
**Examples**

`sparklog mirror status`

`sparklog mirror status old --format json`

*source end* is the last stable offset of the source, *lag* the number of offsets that are missing here, and *behind*
the time since the topic had all records of the source. *open* counts offsets after it: a transaction that has not
ended holds back its records and all after them. *lost* offsets were deleted at the source before the mirror read
them. *refused* records did not fit the columns of a typed topic. If the source does not answer, the figures are those of the workers' newest reports.
"""


@app.command("status", epilog=_STATUS_EPILOG)
def status(
    name: Annotated[str | None, typer.Argument(help="The mirror's name; all mirrors if none.")] = None,
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the progress of mirrors: offsets, lag, lost offsets, pauses."""
    import sys

    from sparklog.errors import InvalidConfigError

    with open_admin(bootstrap_servers) as admin:
        mirrors = [mirror for mirror in admin.describe_mirrors() if name in (None, mirror.name)]
    if name is not None and not mirrors:
        raise InvalidConfigError(
            f"there is no mirror {name!r}, or all its topics are promoted; 'sparklog mirror status' lists the mirrors"
        )
    if format is TableFormat.json:
        import json
        from dataclasses import asdict

        shown = [asdict(mirror) for mirror in mirrors]
        print(json.dumps(shown[0] if name is not None else shown))
    elif not mirrors:
        print(
            "there is no mirror; `sparklog mirror create NAME --source URL --topics PATTERN` creates one",
            file=sys.stderr,
        )
    for mirror in mirrors if format is TableFormat.table else ():
        _print_mirror(mirror)


def _print_mirror(mirror: MirrorDescription) -> None:
    from sparklog.cli import console
    from sparklog.cli.printing import printable

    print(f"mirror  {mirror.name}")
    print(f"source  {mirror.source}")
    if mirror.error:
        print(f"error   {printable(mirror.error, REASON_CHARS_MAX)}")
    for topic in mirror.topics:
        if topic.reason:
            print(f"paused  {topic.topic}: {printable(topic.reason, REASON_CHARS_MAX)}")
        elif topic.error:
            print(f"error   {topic.topic}: {printable(topic.error, REASON_CHARS_MAX)}")
        if held := sum(p.held for p in topic.partitions):
            print(f"open    {topic.topic}: {console.number(held)} offsets, {HELD}")
    running = [topic for topic in mirror.topics if topic.state == "running"]
    if running and not any(topic.is_reported for topic in running):
        print("worker  none has reported: start one with `sparklog mirror run`, or set mirror.worker.enable")
    numbers = ("partition", "source end", "end here", "lag", "behind", "lost", "refused")
    table = console.table("topic", "state", *numbers, right=numbers)
    for topic in mirror.topics:
        for p in topic.partitions:
            table.add_row(topic.topic, topic.state, str(p.partition), *_figures(p))
    console.stdout().print(table)


def _figures(p: MirrorPartition) -> list[str]:
    from sparklog.cli import console
    from sparklog.cli.printing import duration

    behind = "-" if p.lag_seconds < 0 else duration(p.lag_seconds)
    numbers = ["-" if n < 0 else console.number(n) for n in (p.source_end, p.end, p.lag)]
    return [*numbers, behind, console.number(p.lost), console.number(p.refused)]


_PROMOTE_EPILOG = """\
**Examples**

`sparklog mirror promote old orders` (stop the producers of `orders` at the source before)

`sparklog mirror promote old --now` (takes the records that are here: the source is gone)

The topic then takes records of any producer, from the offset after the last mirrored one. There is no way back into the
mirror: a new mirror begins with a new topic.
"""


@app.command("promote", epilog=_PROMOTE_EPILOG)
def promote(
    name: MirrorName,
    topics: Annotated[list[str] | None, typer.Argument(help="Topics; all of the mirror if none.")] = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the source's end.")] = False,
    within: Annotated[str, typer.Option(metavar="TIME", help="Limit of the wait.")] = "10m",
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Open mirrored topics for writers, when they have reached the source's end."""
    from sparklog.cli.durations import parse_number_or_ms

    with open_admin(bootstrap_servers) as admin:
        limit_ms = parse_number_or_ms(within, "--within", 1, 1)
        promoted = admin.promote_mirror(name, topics or None, now=now, timeout_ms=limit_ms)
    for topic in promoted:
        print(f"topic {topic} is open for writers")


@app.command("pause")
def pause(
    name: MirrorName,
    reason: Annotated[str, typer.Option(help="Text that `status` shows.")] = "",
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Stop a mirror until `resume`."""
    with open_admin(bootstrap_servers) as admin:
        for topic in admin.pause_mirror(name, reason):
            print(f"the mirror of topic {topic} is paused")


@app.command("resume")
def resume(name: MirrorName, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Continue a paused mirror. If the cause of the pause remains, the mirror pauses again."""
    with open_admin(bootstrap_servers) as admin:
        for topic in admin.resume_mirror(name):
            print(f"the mirror of topic {topic} is resumed")


@app.command("delete")
def delete(
    name: MirrorName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a mirror with its topics here. Promoted topics stay, and nothing changes at the source."""
    with open_admin(bootstrap_servers) as admin:
        if not yes:
            typer.confirm(
                f"The topics of mirror {name} that are not promoted are deleted here, with their records. Delete?",
                abort=True,
            )
        for topic in admin.delete_mirror(name):
            print(f"topic {topic} is deleted")


_VERIFY_EPILOG = """\
**Examples**

`sparklog mirror verify old`

`sparklog mirror verify old --sample 1%`

Records are compared up to the end here. In a compacted topic each side removes records at its own times, so that only
records of both sides are compared.
"""


@app.command("verify", epilog=_VERIFY_EPILOG)
def verify(
    name: MirrorName,
    sample: Annotated[str, typer.Option(metavar="PERCENT", help="Part of the offsets to compare.")] = "100%",
    format: Annotated[TableFormat, typer.Option(help="Output format.")] = TableFormat.table,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Compare keys, values, headers and times with the source, offset by offset. Exit status 1 for a difference, or if
    the mirror's user must not read a topic."""
    from sparklog.cli.printing import printable
    from sparklog.client.net.cluster import cluster
    from sparklog.mirror.worker.verify import verify_mirror

    report = verify_mirror(
        cluster(bootstrap_servers, client_security()), name, share=_share(sample), timeout_ms=timeout_ms()
    )
    if format is TableFormat.json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(report)))
    else:
        noun = "partition" if report.partitions == 1 else "partitions"
        refused = f", {report.refused:,} of them refused" if report.refused else ""
        print(f"{report.partitions:,} {noun}, {report.records:,} records compared{refused}")
        if report.held:
            print(f"not compared: {report.held:,} offsets, {HELD}")
        for topic, refusal in report.refusals.items():
            print(f"not compared: topic {topic}, {printable(refusal, REASON_CHARS_MAX)}")
        for problem in report.problems:
            print(f"difference: {printable(problem, REASON_CHARS_MAX)}")
        same = "equal" if not report.refusals else "no difference in what was compared"
        print(same if not report.differences else f"{report.differences:,} differences")
    if report.differences or report.refusals:
        raise typer.Exit(1)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise typer.BadParameter(f"--sample {text}: give a percentage above 0%, up to 100%")
    return share


_RUN_EPILOG = """\
**Examples**

`sparklog mirror run` (until Ctrl-C; any number of workers share the topics)

`sparklog mirror run old --once` (up to the present end of the source, for a scheduler)

Each broker starts a worker by itself when there is a mirrored topic, unless `mirror.worker.enable` is false.
"""


@app.command("run", epilog=_RUN_EPILOG)
def run(
    name: Annotated[list[str] | None, typer.Argument(help="Mirrors for --once; all if none.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Copy up to the source's present end, then stop.")] = False,
    end_with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a mirror worker in the foreground."""
    import sys

    from sparklog.cli.worker_process import run_worker
    from sparklog.mirror.worker.worker import MirrorWorker

    if name and not once:
        raise typer.BadParameter("mirrors need --once: a continuous worker shares all topics with the other workers")
    security, limit_ms = client_security(), timeout_ms()
    errors = run_worker(
        lambda: MirrorWorker(bootstrap_servers, security=security, request_timeout_ms=limit_ms),
        name or None,
        once=once,
        end_with_parent=end_with_parent,
    )
    for place, error in errors.items():
        print(f"error: {place}: {error}", file=sys.stderr)
    if errors:
        raise typer.Exit(1)
