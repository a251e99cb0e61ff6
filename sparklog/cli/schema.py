"""`sparklog schema`: shows, registers, checks and deletes schemas of a schema registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Unasked
from sparklog.cli.registry_client import RegistryUrl, open_registry

if TYPE_CHECKING:
    from sparklog.client.net.registry_subjects import RegistrySubjects

app = typer.Typer(
    no_args_is_help=True,
    help="Show, register, check and delete schemas.",
    epilog="""\
**Where to begin**: set `schema.registry.listeners` in the broker's configuration; `--bootstrap-servers` then leads to
the registry, too. `--url` names another one. The user with the password or the token, and the authorities of https,
come from `--command-config` or a profile, as for other commands.

`sparklog schema list`

`sparklog schema register trips-value trips.avsc`
""",
)
NAME_CHARS_MAX = 255
SUBJECTS_WITH_VERSIONS_MAX = 1_000
"""Largest number of subjects that `list` shows with versions: each subject takes a request."""
FILE_BYTES_MAX = 4 * 1024 * 1024

Subject = Annotated[str, typer.Argument(help="The subject, such as trips-value.")]
SchemaFile = Annotated[Path, typer.Argument(help="File with the schema's text; - for standard input.", allow_dash=True)]
Version = Annotated[str, typer.Option("--version", "-v", help="Number of the version, or latest.")]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="A schema that this one uses; repeatable."),
]


class Kind(StrEnum):
    """Types of schemas."""

    avro = "avro"
    json = "json"
    protobuf = "protobuf"


KindOption = Annotated[
    Kind | None,
    typer.Option(
        "--type", help="Type of the schema (default: protobuf for a file NAME.proto, json for NAME.json, else avro)."
    ),
]


@contextmanager
def _subjects(url: str | None, bootstrap_servers: str) -> Iterator[RegistrySubjects]:
    """Yield the subjects of the registry that the options name. Raises SparklogError."""
    from contextlib import closing

    from sparklog.client.net.registry_subjects import RegistrySubjects

    with closing(open_registry(url, bootstrap_servers, idle_max=1)) as client:
        yield RegistrySubjects(client)


@app.command("list", epilog="**Example**\n\n`sparklog schema list`")
def list_subjects(
    prefix: Annotated[str, typer.Argument(help="Only subjects that begin like this.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Also subjects that are deleted softly.")] = False,
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the subjects with their versions."""
    import sys

    from sparklog.cli import console
    from sparklog.cli.printing import printable

    with _subjects(url, bootstrap_servers) as registry:
        names = registry.names(prefix, deleted=deleted)
        if not names:
            print("no subjects", file=sys.stderr)
            return
        if len(names) > SUBJECTS_WITH_VERSIONS_MAX:
            for name in names:
                print(printable(name, NAME_CHARS_MAX))
            print(f"{len(names):,} subjects; a prefix of fewer subjects shows their versions", file=sys.stderr)
            return
        table = console.table("subject", "versions")
        for name in names:
            versions = registry.versions(name, deleted=deleted)
            table.add_row(printable(name, NAME_CHARS_MAX), ", ".join(map(str, versions)))
    console.stdout().print(table)


@app.command("show", epilog="**Example**\n\n`sparklog schema show trips-value --version 2`")
def show(
    subject: Subject,
    version: Version = "latest",
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show one version of a subject: its id and type on stderr, its text on stdout."""
    import sys

    from sparklog.cli.printing import printable

    with _subjects(url, bootstrap_servers) as registry:
        answer = registry.version(subject, version)
    print(f"version {answer.version}, id {answer.id}, {printable(answer.schemaType, NAME_CHARS_MAX)}", file=sys.stderr)
    for one in answer.references:
        line = f"uses {one.name} = {one.subject}:{one.version}"
        print(printable(line, 3 * NAME_CHARS_MAX), file=sys.stderr)
    print(_for_terminal(answer.schema) if sys.stdout.isatty() else answer.schema)


def _for_terminal(text: str) -> str:
    """Return a text without control characters, which could be commands of the terminal, except for its lines."""
    from sparklog.cli.printing import printable

    lines = text.expandtabs().split("\n")
    return "\n".join(printable(line, len(line)) for line in lines)


@app.command("register", epilog="**Example**\n\n`sparklog schema register trips-value trips.avsc`")
def register(
    subject: Subject,
    file: SchemaFile,
    type: KindOption = None,
    reference: ReferenceOption = None,
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Register a schema as the newest version of a subject. The same schema again keeps its version."""
    body = _body(file, type, reference)
    with _subjects(url, bootstrap_servers) as registry:
        answer = registry.register(subject, body)
    print(f"{subject}: version {answer.version}, id {answer.id}")


@app.command("check", epilog="**Example**\n\n`sparklog schema check trips-value trips.avsc`")
def check(
    subject: Subject,
    file: SchemaFile,
    type: KindOption = None,
    reference: ReferenceOption = None,
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Check a schema by the subject's level of compatibility and by the columns of its topic, without changing
    anything, and show the effects that its registration would have on the topic. Exit code 1 if the schema would be
    refused."""
    import sys

    from sparklog.cli.printing import printable

    body = _body(file, type, reference)
    with _subjects(url, bootstrap_servers) as registry:
        answer = registry.check(subject, body)
    if not answer.is_compatible:
        for message in answer.messages:
            print(printable(message, len(message)), file=sys.stderr)
        print(f"{subject}: not compatible", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{subject}: compatible")
    for effect in answer.effects:
        print(printable(effect, len(effect)))


@app.command("delete", epilog="**Example**\n\n`sparklog schema delete trips-value --version 1`")
def delete(
    subject: Subject,
    version: Annotated[str | None, typer.Option("--version", "-v", help="Only this version.")] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove what was deleted before; its ids stay unused.")
    ] = False,
    yes: Unasked = False,
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a subject, or one of its versions. A deletion that is not permanent is soft: ids stay readable."""
    name = subject if version is None else f"version {version} of {subject}"
    if permanent and not yes:
        typer.confirm(f"delete {name} permanently?", abort=True)
    with _subjects(url, bootstrap_servers) as registry:
        registry.delete(subject, version, permanent=permanent)
    print(f"deleted {name}{' permanently' if permanent else ''}")


def _body(file: Path, kind: Kind | None, references: list[str] | None) -> dict[str, Any]:
    """Return the request with the schema of a file. Raises typer.BadParameter, OSError."""
    from sparklog.client.net.registry_subjects import parse_reference, schema_body
    from sparklog.errors import InvalidRequestError

    text = _text(file)
    by_suffix = {".proto": Kind.protobuf, ".json": Kind.json}
    kind = kind or by_suffix.get(file.suffix, Kind.avro)
    try:
        return schema_body(text, kind.value.upper(), [parse_reference(one) for one in references or ()])
    except InvalidRequestError as e:
        raise typer.BadParameter(str(e)) from None


def _text(file: Path) -> str:
    """Return the text of a file, or of standard input for "-". Raises typer.BadParameter, OSError."""
    import sys

    if str(file) == "-":
        content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    else:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise typer.BadParameter(f"{file} has more than {FILE_BYTES_MAX:,} bytes: it is no schema")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8, so it is no schema") from None
