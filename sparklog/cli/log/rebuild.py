"""`sparklog log rebuild-metadata`: restores a lost metadata.db from the partitions' directories."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.log.repair import locked

if TYPE_CHECKING:
    from sparklog.metadata.rebuild import Rebuilt

REBUILD_EPILOG = """\
**Examples**

`sparklog log rebuild-metadata --data-dir sparklog-data`

`sparklog log rebuild-metadata --data-dir sparklog-data --yes`

metadata.db holds the metadata of a broker without ZooKeeper. If it is lost, the partitions' directories have the same facts: name, id, columns
and, if a recent broker has written them, settings and owner. Facts that are lost are listed. Topics without known settings
keep their records forever until you set retention.ms. Topics without a known owner count for no user's quota.

Users, ACLs and quotas are in metadata.db alone. They are taken from the rest of it, or from a copy that you name with
--security-from. Without either, the command writes ACLs that deny everything to all but super.users. Add users, ACLs and
quotas again, then remove the five denials (`sparklog acl list` shows them).

Without --yes nothing is written. With --yes the broker has to be stopped.
A broker with zookeeper.connect has no metadata.db: its topics are in ZooKeeper. If ZooKeeper is lost for good, --force turns the
directory into that of a single broker, with all records of this replica, unacknowledged ones included.
"""


def rebuild_metadata(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The broker's data directory.")],
    log_dirs: Annotated[
        str, typer.Option(metavar="DIR,…", help="The broker's log.dirs (default: those of its last start).")
    ] = "",
    security_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A copy of metadata.db with users, ACLs and quotas.", show_default=False),
    ] = None,
    no_security: Annotated[
        bool, typer.Option("--no-security", help="Assert that no users, ACLs and quotas existed: deny nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the changes.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if metadata.db is intact (the old one is kept), or of a cluster.")
    ] = False,
) -> None:
    """Write metadata.db again from the partitions' directories."""
    from sparklog_broker.coordinators.internal_topics import INTERNAL_CONFIGS

    from sparklog.cli.errors import report as report_error
    from sparklog.environment.files import RealFiles, absolute
    from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE
    from sparklog.log.directories.broker_epoch import member_of_cluster
    from sparklog.log.directories.remembered import read_remembered_directories
    from sparklog.metadata.local_store import METADATA_FILE, problem_with, write_store
    from sparklog.metadata.rebuild import rebuild

    files = RealFiles()
    directories = [Path(p.strip()) for p in log_dirs.split(",") if p.strip()]
    directories = directories or read_remembered_directories(files, data_dir) or [data_dir]
    path = data_dir / METADATA_FILE
    member = member_of_cluster(files, data_dir)
    if member is not None and not force and not files.exists(path):
        report_error(
            "not rebuilt",
            f"{data_dir} is the directory of broker {member.broker_id} of cluster {member.cluster_id}: its topics are in "
            "ZooKeeper, and no metadata.db is missing",
            f"start it with --broker-id {member.broker_id} --zookeeper HOST:PORT,…/PATH; if all of ZooKeeper is lost "
            "for good, --force makes it a broker without a cluster",
        )
        raise typer.Exit(1)
    with ExitStack() as locks:
        for directory in dict.fromkeys(map(absolute, (data_dir, *directories))):
            locks.enter_context(locked(directory, takes_lock=yes))
        rebuilt = rebuild(
            directories,
            files,
            topic_configs=dict(INTERNAL_CONFIGS),
            on_directory=lambda directory: print(f"reading {directory}", file=sys.stderr),
        )
        security = _security(rebuilt, path, security_from, lost_is_fine=no_security)
        problem = problem_with(path, rebuilt.cluster_id)
        if problem is None and not force:
            report_error("not rebuilt", f"{path} is sound", "--force replaces it nevertheless")
            raise typer.Exit(1)
        _print(rebuilt, problem)
        print(security)
        if not yes:
            report_error("not rebuilt", "this was a dry run", "stop the broker, then run the command again with --yes")
            raise typer.Exit(1)
        kept = write_store(path, rebuilt, aside=f"{time.strftime('%Y%m%d-%H%M%S')}.old")
        files.remove(data_dir / CLUSTER_IMAGE_FILE)  # marks the directory of a broker in a cluster
    if kept is not None:
        print(f"the old one is {kept}")
    print(f"{path}: {len(rebuilt.topics)} topics")


def _security(rebuilt: Rebuilt, path: Path, copy: Path | None, *, lost_is_fine: bool) -> str:
    """Set the security records of `rebuilt`, from `copy` or from `path`, and return a line about their source. Raises
    InvalidConfigError if `copy` cannot be read."""
    from sparklog.errors import InvalidConfigError
    from sparklog.metadata.local_store import read_security_records
    from sparklog.metadata.lost_security import denies_everything

    records = read_security_records(copy or path)
    if records is None and copy is not None:
        raise InvalidConfigError(f"--security-from {copy}: users, ACLs and quotas cannot be read from it")
    if records is not None:
        rebuilt.security_records = records
        return f"users, ACLs and quotas: {len(records)} records from {copy or path}"
    if lost_is_fine:
        return "users, ACLs and quotas: none"
    rebuilt.security_records = denies_everything()
    return (
        "users, ACLs and quotas: LOST. With authorizer = acl everything is denied to all but super.users, passwords are\n"
        "  those of sasl.scram.initial.credentials again: change them, add users, ACLs and quotas, then\n"
        "  sparklog acl remove --deny-principal 'User:*' (for each resource that sparklog acl list shows)"
    )


def _print(rebuilt: Rebuilt, problem: str | None) -> None:
    print(f"metadata.db: {problem or 'sound, replaced because of --force'}")
    for topic in rebuilt.topics:
        print(f"topic {topic.name}: {topic.kind}, {topic.partitions} partitions, {len(topic.schemas)} schemas")
        for fact in rebuilt.unknown.get(topic.name, ()):
            print(f"  unknown: {fact}")
    for path, reason in rebuilt.ignored:
        print(f"left out: {path}: {reason}")
    print(f"producer ids continue at {rebuilt.next_producer_id}, schema ids at {rebuilt.next_schema_id}")
