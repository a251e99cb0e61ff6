"""`sparklog certificate`: certificates of a secure cluster that `sparklog broker --secure-setup DIR` has made."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Certificates of a cluster that --secure-setup has made: for one more broker, and new ones.",
    no_args_is_help=True,
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="What --secure-setup has made.", show_default=False)]

_ADD_EPILOG = """\
**Example**

`sparklog certificate add-broker /etc/sparklog --broker-id 4 --hostname broker-4`

Makes DIR/broker-4: take it to the broker's machine, to the same path, and start `sparklog broker --config
DIR/broker-4/broker.toml`. No other broker has to be told. ca-key.pem has to be in DIR for it.
"""
_RENEW_EPILOG = """\
**Examples**

`sparklog certificate renew /etc/sparklog --broker-id 2`

`sparklog certificate renew /etc/sparklog`

A broker that runs takes its new certificate within ssl.reload.interval.ms, or when it is told to (SIGHUP); what is
connected stays connected. ca-key.pem has to be in DIR for it.
"""
_AUTHORITY_EPILOG = """\
**In this order**, each step at all brokers and clients before the next one:

1. `sparklog certificate new-authority DIR`: both authorities are trusted. Take the ca.pem to brokers and clients.

2. `sparklog certificate renew DIR`: certificates of the new one. Take the broker.pem to the brokers.

3. `sparklog certificate retire-authority DIR`: only the new one is trusted. Take the ca.pem to brokers and clients.

Nothing has to be restarted.
"""


@app.command("add-broker", epilog=_ADD_EPILOG)
def add_broker(
    directory: Directory,
    broker_id: Annotated[int, typer.Option(min=0, help="The new broker's number.")],
    hostname: Annotated[str, typer.Option(metavar="NAME", help="How clients and brokers name its host.")],
    port: Annotated[
        int, typer.Option(min=1, max=65_534, help="Where clients reach it; the next one is for other brokers.")
    ] = 9292,
    data_dir: Annotated[Path | None, typer.Option(help="Where it stores topics.")] = None,
) -> None:
    """Make a certificate and settings for one more broker."""
    from sparklog.security import cluster_setup

    made = cluster_setup.add_broker(directory, broker_id, cluster_setup.BrokerPlace(hostname, port, data_dir), _now())
    print(f"made in {made}: certificate and settings of broker {broker_id} for {hostname}")
    print(f"next:\n  sparklog broker --config {made}/broker.toml")


@app.command("renew", epilog=_RENEW_EPILOG)
def renew(
    directory: Directory,
    broker_id: Annotated[int | None, typer.Option(min=0, help="For this broker alone.", show_default=False)] = None,
) -> None:
    """Make new keys and certificates for brokers that are there."""
    from sparklog.security import cluster_setup

    _say("renewed", cluster_setup.renew(directory, _now(), broker_id))


@app.command("new-authority", epilog=_AUTHORITY_EPILOG)
def new_authority(directory: Directory) -> None:
    """Make an authority that is to replace the one before; both are trusted."""
    from sparklog.security import cluster_setup

    _say("both authorities are trusted by", cluster_setup.new_authority(directory, _now()))


@app.command("retire-authority", epilog=_AUTHORITY_EPILOG)
def retire_authority(directory: Directory) -> None:
    """Trust only the newest authority from now on."""
    from sparklog.security import cluster_setup

    _say("only the new authority is trusted by", cluster_setup.retire_authority(directory))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _say(what: str, paths: Iterable[Path]) -> None:
    for path in paths:
        print(f"{what}: {path}")
