"""`sparklog schema`: shows, registers, checks and deletes schemas of a schema registry."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparklog.cli.options import Unasked

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
ANSWER_BYTES_MAX = 64 * 1024 * 1024
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
    subjects = _ask(url, "GET", ["subjects"], {"subjectPrefix": prefix} | flag)
    if not subjects:
        print("no subjects", file=sys.stderr)
        return
    table = console.table("subject", "versions")
    for subject in subjects:
        versions = _ask(url, "GET", ["subjects", subject, "versions"], flag)
        table.add_row(printable(subject, NAME_CHARS_MAX), ", ".join(map(str, versions)))
    console.stdout().print(table)


@app.command("show", epilog="**Example**\n\n`sparklog schema show trips-value --version 2`")
def show(subject: Subject, version: Version = "latest", url: Url = DEFAULT_URL) -> None:
    """Show one version of a subject: its id and type on stderr, its text on stdout."""
    import sys

    answer = _ask(url, "GET", ["subjects", subject, "versions", version])
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
    answer = _ask(url, "POST", ["subjects", subject, "versions"], body=body)
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
    answer = _ask(url, "POST", path, {"verbose": "true"}, body)
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
    _ask(url, "DELETE", path, {"permanent": str(permanent).lower()})
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


def _ask(
    url: str, method: str, path: list[str], query: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> Any:
    """Send a request to the registry and return its answer. Raises SparklogError."""
    import base64
    import json
    import ssl
    import urllib.error
    import urllib.request
    from http import HTTPStatus
    from urllib.parse import quote, urlencode

    from sparklog import errors
    from sparklog.cli.client_command import client_security
    from sparklog.security.tls import client_context

    if not url.startswith(("http://", "https://")):
        raise errors.InvalidConfigError(f"--url {url}: write http://HOST:PORT or https://HOST:PORT")
    security = client_security()
    target = f"{url.rstrip('/')}/{'/'.join(quote(part, safe='') for part in path)}"
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    if security is not None and security.username:
        pair = f"{security.username}:{security.password.reveal()}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{target}?{urlencode(query or {})}", data, headers, method=method)
    context: ssl.SSLContext | None = None
    if url.startswith("https://"):
        context = client_context(dict(security.tls)) if security is not None else ssl.create_default_context()
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as e:
        with e:
            text = e.read(ANSWER_BYTES_MAX)
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:200].decode(errors="replace")
        denials: dict[int, type[errors.SparklogError]] = {
            HTTPStatus.UNAUTHORIZED: errors.SaslAuthenticationFailedError,
            HTTPStatus.FORBIDDEN: errors.TopicAuthorizationFailedError,
        }
        raise denials.get(e.code, errors.InvalidRequestError)(f"{message} (HTTP {e.code})") from None
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", e)
        raise errors.BrokerNotAvailableError(f"no schema registry answers at {url}: {reason}") from None
