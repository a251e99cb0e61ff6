"""`sparklog backup` and `sparklog restore`: copies of topics and groups in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli import completion
from sparklog.cli.client_command import client_security
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, parse_pairs, timeout_ms

if TYPE_CHECKING:
    from sparklog.log.tiering.object_store import ObjectStore

BACKUP_EPILOG = """\
**Examples**

`sparklog backup s3://bucket/sparklog`

`sparklog backup /mnt/backup --topic trips --topic events`

The backup is one moment of all topics: of each transaction it has all records or none. Clients go on meanwhile. A further
backup into the same place stores only newer records. It has topics with their settings, records, and offsets of groups;
not users, ACLs and quotas.
"""
RESTORE_EPILOG = """\
**Examples**

`sparklog restore s3://bucket/sparklog --bootstrap-servers new:9292`

`sparklog restore /mnt/backup --topic trips --at manifests/001795737600000.json`

The topics must not exist. Records keep their partitions and order, and get offsets from 0 on; offsets of groups are set to
the same records. Spark queries need new checkpoints.
"""
Url = Annotated[str, typer.Argument(metavar="URL", help="Any fsspec URL, or a directory.")]
Options = Annotated[
    str, typer.Option("--options", help="fsspec's options for the URL: a JSON object, or a file that holds one.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Only this topic; repeatable.", autocompletion=completion.topics),
]


def backup(
    url: Url,
    topic: Topics = None,
    options: Options = "",
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Copy topics and groups into an object store, from a live broker."""
    from sparklog.cli import console
    from sparklog.cli.durations import now_ms
    from sparklog.client.backup.backup import backup as run

    written: list[int] = []
    manifest = run(
        bootstrap_servers,
        _store(url, options, create=True),
        now_ms=now_ms(),
        topics=topic or [],
        timeout_ms=timeout_ms(),
        security=client_security(),
        report=lambda tp, rows: written.append(rows),
    )
    rows = sum(part.rows for t in manifest.topics for p in t.partitions for part in p.parts)
    print(
        f"{len(manifest.topics)} topics, {console.number(rows)} records, {len(manifest.groups)} groups; "
        f"{console.number(sum(written))} records in {len(written)} new objects"
    )


def restore(
    url: Url,
    topic: Topics = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="KEY", help="A manifest's key. [default: the newest]")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each partition. [default: the brokers']")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="K=V", help="A setting of the topics in place of the backup's; repeatable."
        ),
    ] = None,
    options: Options = "",
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create the topics and groups of a backup, in a cluster that does not have them."""
    from sparklog.cli import console
    from sparklog.client.backup.backup import newest_manifest
    from sparklog.client.backup.restore import restore as run
    from sparklog.errors import InvalidRequestError

    store = _store(url, options, create=False)
    manifest = newest_manifest(store, at)
    if manifest is None:
        raise InvalidRequestError(f"{url} holds no backup: `sparklog backup {url}` makes one")
    print(f"backup of {console.iso_time(manifest.created_ms)}")
    rows = run(
        bootstrap_servers,
        store,
        manifest,
        topics=topic or [],
        replication_factor=replication_factor,
        configs=parse_pairs(config or [], "--config"),
        timeout_ms=timeout_ms(),
        security=client_security(),
    )
    print(f"{len({tp.topic for tp in rows})} topics, {console.number(sum(rows.values()))} records restored")


def _store(url: str, options: str, *, create: bool) -> ObjectStore:
    from pathlib import Path

    from sparklog.errors import InvalidRequestError
    from sparklog.log.tiering.object_store import ObjectStore, parse_options

    if "://" not in url:
        scheme, colon, rest = url.partition(":")
        # s3:/bucket: without this refusal a backup would fill the local disk
        if colon and scheme[:1].isalpha() and scheme.isalnum():
            raise InvalidRequestError(
                f"{url!r} is neither a URL nor a clear path: write {scheme}://{rest.lstrip('/')} for a URL, or ./{url} "
                "for a directory"
            )
        path = Path(url).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise InvalidRequestError(f"{url} is a file: name a directory or a URL")
        if create:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.is_dir():
            raise InvalidRequestError(
                f"{url} holds no backup, as it is no directory: `sparklog backup {url}` makes one"
            )
        url = path.as_uri()
    return ObjectStore(url, parse_options(options, "--options"), setting="URL")
