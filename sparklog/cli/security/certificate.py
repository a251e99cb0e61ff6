"""`sparklog certificate`: adds and renews certificates of a cluster of `sparklog broker --secure-setup DIR`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Add or renew certificates of a cluster that --secure-setup created.",
    no_args_is_help=True,
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of --secure-setup.", show_default=False)]

_ADD_EPILOG = """\
**Example**

`sparklog certificate add-broker /etc/sparklog --broker-id 4 --hostname broker-4`

The command creates DIR/broker-4. Copy it to the same path on the broker's machine, and start `sparklog broker --config
DIR/broker-4/broker.toml`. Other brokers need no change. ca-key.pem has to be in DIR.
"""
_RENEW_EPILOG = """\
**Examples**

`sparklog certificate renew /etc/sparklog --broker-id 2`

`sparklog certificate renew /etc/sparklog`

A running broker uses its new certificate within ssl.reload.interval.ms, or on SIGHUP. Open connections stay open.
ca-key.pem has to be in DIR.
"""
_AUTHORITY_EPILOG = """\
**In this order**, each step at all brokers and clients before the next one:

1. `sparklog certificate new-authority DIR`: both authorities are trusted. Copy ca.pem to brokers and clients.

2. `sparklog certificate renew DIR`: certificates of the new authority. Copy broker.pem to the brokers.

3. `sparklog certificate retire-authority DIR`: only the new authority is trusted. Copy ca.pem to brokers and clients.

No restart is needed.
"""


@app.command("add-broker", epilog=_ADD_EPILOG)
def add_broker(
    directory: Directory,
    broker_id: Annotated[int, typer.Option(min=0, help="The new broker's number.")],
    hostname: Annotated[str, typer.Option(metavar="NAME", help="Host name of the broker for clients and brokers.")],
    port: Annotated[
        int, typer.Option(min=1, max=65_534, help="Port for clients; the next port is for other brokers.")
    ] = 9292,
    data_dir: Annotated[Path | None, typer.Option(help="Directory of the broker's topics.")] = None,
) -> None:
    """Create the certificate and the settings of one more broker."""
    from sparklog.security import cluster_setup

    path = cluster_setup.add_broker(directory, broker_id, cluster_setup.BrokerPlace(hostname, port, data_dir), _now())
    print(f"made in {path}: certificate and settings of broker {broker_id} for {hostname}")
    print(f"next:\n  sparklog broker --config {path}/broker.toml")


@app.command("renew", epilog=_RENEW_EPILOG)
def renew(
    directory: Directory,
    broker_id: Annotated[
        int | None, typer.Option(min=0, help="Renew only this broker's certificate.", show_default=False)
    ] = None,
) -> None:
    """Create new keys and certificates for existing brokers."""
    from sparklog.security import cluster_setup

    _print_paths("renewed", cluster_setup.renew(directory, _now(), broker_id))


@app.command("new-authority", epilog=_AUTHORITY_EPILOG)
def new_authority(directory: Directory) -> None:
    """Create an authority that replaces the current one; both are trusted."""
    from sparklog.security import cluster_setup

    _print_paths("both authorities are trusted by", cluster_setup.new_authority(directory, _now()))


@app.command("retire-authority", epilog=_AUTHORITY_EPILOG)
def retire_authority(directory: Directory) -> None:
    """Trust only the newest authority from now on."""
    from sparklog.security import cluster_setup

    _print_paths("only the new authority is trusted by", cluster_setup.retire_authority(directory))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _print_paths(title: str, paths: Iterable[Path]) -> None:
    for path in paths:
        print(f"{title}: {path}")
