"""`sparklog schema`: shows, registers, checks and deletes schemas of a schema registry."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparklog.cli.options import Unasked
from sparklog.cli.registry_client import ask

app = typer.Typer(
    no_args_is_help=True,
    help="Show, register, check and delete schemas.",
    epilog="""\
**Where to begin**: set `schema.registry.listeners` in the broker's configuration. The user and the password, or the
authorities of https, come from `--command-config` or a profile, as for other commands.

`sparklog schema list`

`sparklog schema register trips-value trips.avsc`
""",
)
ENV_URL = "SPARKLOG_SCHEMA_REGISTRY_URL"
DEFAULT_URL = "http://127.0.0.1:8081"
NAME_CHARS_MAX = 255

Url = Annotated[str, typer.Option("--url", envvar=ENV_URL, metavar="URL", help="Address of the schema registry.")]
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


KindOption = Annotated[Kind | None, typer.Option("--type", help="Type of the schema (default: by the file's name).")]


@app.command("list", epilog="**Example**\n\n`sparklog schema list`")
def list_subjects(
    prefix: Annotated[str, typer.Argument(help="Only subjects that begin like this.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Also subjects that are deleted softly.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the subjects with their versions."""
    import sys

    from sparklog.cli import console
    from sparklog.cli.printing import printable

    flag = {"deleted": str(deleted).lower()}
    subjects = ask(url, "GET", ["subjects"], {"subjectPrefix": prefix} | flag)
    if not subjects:
        print("no subjects", file=sys.stderr)
        return
    table = console.table("subject", "versions")
    for subject in subjects:
        versions = ask(url, "GET", ["subjects", subject, "versions"], flag)
        table.add_row(printable(subject, NAME_CHARS_MAX), ", ".join(map(str, versions)))
    console.stdout().print(table)


@app.command("show", epilog="**Example**\n\n`sparklog schema show trips-value --version 2`")
def show(subject: Subject, version: Version = "latest", url: Url = DEFAULT_URL) -> None:
    """Show one version of a subject: its id and type on stderr, its text on stdout."""
    import sys

    answer = ask(url, "GET", ["subjects", subject, "versions", version])
    kind = answer.get("schemaType", "AVRO")
    print(f"version {answer['version']}, id {answer['id']}, {kind}", file=sys.stderr)
    for reference in answer.get("references", []):
        print(f"uses {reference['name']} = {reference['subject']}:{reference['version']}", file=sys.stderr)
    print(answer["schema"])


@app.command("register", epilog="**Example**\n\n`sparklog schema register trips-value trips.avsc`")
def register(
    subject: Subject,
    file: SchemaFile,
    type: KindOption = None,
    reference: ReferenceOption = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Register a schema as the newest version of a subject. The same schema again keeps its version."""
    body = _body(file, type, reference)
    answer = ask(url, "POST", ["subjects", subject, "versions"], body=body)
    print(f"{subject}: version {answer['version']}, id {answer['id']}")


@app.command("check", epilog="**Example**\n\n`sparklog schema check trips-value trips.avsc`")
def check(
    subject: Subject,
    file: SchemaFile,
    type: KindOption = None,
    reference: ReferenceOption = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Check a schema by the subject's level of compatibility, without registering it. Exit code 1 if it is not
    compatible."""
    import sys

    body = _body(file, type, reference)
    path = ["compatibility", "subjects", subject, "versions"]
    answer = ask(url, "POST", path, {"verbose": "true"}, body)
    if not answer["is_compatible"]:
        for message in answer.get("messages", []):
            print(message, file=sys.stderr)
        print(f"{subject}: not compatible", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{subject}: compatible")


@app.command("delete", epilog="**Example**\n\n`sparklog schema delete trips-value --version 1`")
def delete(
    subject: Subject,
    version: Annotated[str | None, typer.Option("--version", "-v", help="Only this version.")] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove what was deleted before; its ids stay unused.")
    ] = False,
    yes: Unasked = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a subject, or one of its versions. A deletion that is not permanent is soft: ids stay readable."""
    name = subject if version is None else f"version {version} of {subject}"
    if permanent and not yes:
        typer.confirm(f"delete {name} permanently?", abort=True)
    path = ["subjects", subject] if version is None else ["subjects", subject, "versions", version]
    ask(url, "DELETE", path, {"permanent": str(permanent).lower()})
    print(f"deleted {name}{' permanently' if permanent else ''}")


def _body(file: Path, kind: Kind | None, references: list[str] | None) -> dict[str, Any]:
    """Return the request with the schema of a file."""
    import sys

    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    by_suffix = {".proto": Kind.protobuf, ".json": Kind.json}
    kind = kind or by_suffix.get(file.suffix, Kind.avro)
    entries = []
    for reference in references or []:
        name, equals, target = reference.partition("=")
        subject, colon, version = target.rpartition(":")
        if not equals or not colon or not version.isdecimal():
            raise typer.BadParameter(f"{reference!r}: a reference is NAME=SUBJECT:VERSION")
        entries.append({"name": name, "subject": subject, "version": int(version)})
    return {"schema": text, "schemaType": kind.value.upper(), "references": entries}
