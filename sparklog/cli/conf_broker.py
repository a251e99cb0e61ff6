"""`sparklog config alter` and `describe`: settings of running brokers, after Kafka's `kafka-configs`."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer

from sparklog.cli.conf import app
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin, parse_changes

__all__ = ["app"]

BrokerId = Annotated[int | None, typer.Option("--broker", min=0, metavar="ID", help="The broker with this number.")]
_SOURCES = {"broker": "this broker", "all-brokers": "all brokers", "file": "file", "default": "default"}

ALTER_EPILOG = """\
**Examples**

`sparklog config alter --all max.connections=5000 slow.request.threshold.ms=1s`

`sparklog config alter --broker 2 log.level=DEBUG`

`sparklog config alter --all topic.retention.ms=3d`

`sparklog config alter --broker 2 --delete log.level`

The change is in effect when the command ends, on other brokers a moment later, and it survives restarts. Precedence: the
value for one broker, then the value for all brokers, the broker's file, the default. Settings that cannot change in this
way need the file and a restart: the column *change* of `sparklog config describe` names them. Defaults of topic settings have
the prefix `topic.`.
"""
DESCRIBE_EPILOG = """\
**Examples**

`sparklog config describe --broker 1`

`sparklog config describe --broker 1 --everything --json`

`sparklog config describe --all`

Without --everything the command shows the settings that are not at their defaults. Secrets are never shown.
"""


def _check_target(broker: int | None, is_all: bool) -> int | None:
    """Return the broker's id; None for all brokers. Raises typer.BadParameter unless exactly one of both is given."""
    if is_all == (broker is not None):
        raise typer.BadParameter("name one broker with --broker ID, or --all")
    return broker


@app.command("alter", epilog=ALTER_EPILOG)
def alter(
    settings: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="Settings to change.")] = None,
    broker: BrokerId = None,
    is_all: Annotated[bool, typer.Option("--all", help="All brokers, those to come included.")] = False,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="NAME", help="Remove the stored value; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the change, and make none.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings of running brokers."""
    changes = parse_changes(settings or [], delete or [], "", "--delete")
    if not changes:
        raise typer.BadParameter("name a setting: NAME=VALUE, or --delete NAME")
    target = _check_target(broker, is_all)
    with open_admin(bootstrap_servers) as admin:
        admin.alter_broker(target, changes, validate_only=dry_run)
    where = "all brokers" if target is None else f"broker {target}"
    done = "would change on" if dry_run else "changed on"
    print(f"{done} {where}: " + ", ".join(f"{k} removed" if v is None else f"{k}={v}" for k, v in changes.items()))


@app.command("describe", epilog=DESCRIBE_EPILOG)
def describe(
    broker: BrokerId = None,
    is_all: Annotated[bool, typer.Option("--all", help="The values for all brokers.")] = False,
    everything: Annotated[bool, typer.Option("--everything", help="Also settings at their defaults.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per setting.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the settings of a running broker, with the source of each value."""
    with open_admin(bootstrap_servers) as admin:
        settings = admin.describe_broker(_check_target(broker, is_all))
    shown = [one for one in settings.values() if everything or one.source != "default"]
    if json:
        for one in shown:
            print(json_module.dumps(one._asdict()))
        return
    if not shown:
        print("all settings are at their defaults", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table("setting", "value", "source", "change")
    for one in shown:
        value = "[hidden]" if one.value is None else one.value
        table.add_row(one.name, value, _SOURCES[one.source], "live" if one.is_dynamic else "restart")
    console.stdout().print(table)
