"""`sparklog broker`: runs a broker in the foreground."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli import decommission

EPILOG = """\
**Examples**

`sparklog broker`

`sparklog broker --data-dir /var/lib/sparklog --listen 127.0.0.1:9300`

`sparklog config broker --output broker.toml && sparklog broker --config broker.toml`

`sparklog broker --secure-setup /etc/sparklog --hostname broker-1`

`sparklog broker --secure-setup /etc/sparklog --brokers 3 --zookeeper zk1:2181,zk2:2181/sparklog --hostname broker-1
--hostname broker-2 --hostname broker-3`

A ready broker prints one line, *listening on HOST:PORT*. Ctrl-C or SIGTERM stops it cleanly. Without --secure-setup every
client that reaches the broker has all rights: listen on 127.0.0.1, or set the broker up securely.
"""


class LogLevel(StrEnum):
    """Log levels, with Python's names."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


app = typer.Typer(help="Run a broker in the foreground, or take one out of its cluster.", epilog=EPILOG)
app.command("decommission", epilog=decommission.EPILOG)(decommission.decommission)


@app.callback(invoke_without_command=True, epilog=EPILOG)
def broker(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="Configuration file (TOML).")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory of the topics. [default: ./sparklog-data]", show_default=False)
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address to listen on; port 0 = any free one. [default: 127.0.0.1:9292]"
        ),
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option(min=0, help="Number of this broker in its cluster. [default: 0]", show_default=False)
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…/PATH", help="ZooKeeper of the cluster; without it the broker runs alone."),
    ] = None,
    rack: Annotated[str | None, typer.Option(help="The broker's rack: replicas are spread over racks.")] = None,
    advertised_listener: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for clients and other brokers. [default: as in --listen]"),
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="Lowest level that is logged. [default: log.level]", show_default=False)
    ] = None,
    secure_setup: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Run nothing, but make a first secure cluster's authority, certificates, super user and settings in DIR.",
        ),
    ] = None,
    hostname: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --secure-setup: how clients name this broker; repeatable. With --brokers: one for each, in order.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="With --secure-setup: number of brokers; they find one another at --zookeeper."
        ),
    ] = None,
    super_user: Annotated[
        str, typer.Option(metavar="NAME", help="With --secure-setup: the first super user's name.")
    ] = "admin",
) -> None:
    """Run a broker in the foreground, or take one out of its cluster."""
    if context.invoked_subcommand is not None:
        return
    if secure_setup is not None:
        if config or rack or broker_id is not None or log_level or (brokers is not None and advertised_listener):
            raise typer.BadParameter("--secure-setup writes a configuration of its own: leave the other options out")
        _set_up_securely(
            secure_setup,
            brokers,
            zookeeper,
            listen=listen,
            advertised=advertised_listener,
            hostnames=hostname or [],
            data_dir=data_dir,
            user=super_user,
        )
        return
    from sparklog_broker import main

    arguments = [
        *(("--config", str(config)) if config else ()),
        *(("--data-dir", str(data_dir)) if data_dir else ()),
        *(("--listen", listen) if listen else ()),
        *(("--broker-id", str(broker_id)) if broker_id is not None else ()),
        *(("--zookeeper", zookeeper) if zookeeper else ()),
        *(("--rack", rack) if rack else ()),
        *(("--advertised-listener", advertised_listener) if advertised_listener else ()),
        *(("--log-level", log_level.value) if log_level else ()),
    ]
    raise typer.Exit(main.main(arguments))


def _set_up_securely(
    directory: Path,
    brokers: int | None,
    zookeeper: str | None,
    *,
    listen: str | None,
    advertised: str | None,
    hostnames: list[str],
    data_dir: Path | None,
    user: str,
) -> None:
    """Write the secure configuration of one broker, or of a cluster if `brokers` and `zookeeper` are given. Raises
    typer.BadParameter if only one of the two is given."""
    from sparklog.cli.security import secure_setup as setup

    if bool(zookeeper) != (brokers is not None):
        raise typer.BadParameter("--secure-setup for several brokers needs --brokers N and --zookeeper HOST:PORT/PATH")
    if brokers is not None and zookeeper:
        setup.make_secure_cluster(
            directory, brokers, zookeeper, listen=listen, hostnames=hostnames, data_dir=data_dir, user=user
        )
    else:
        setup.make_secure_setup(
            directory, listen=listen, advertised=advertised, hostnames=hostnames, data_dir=data_dir, user=user
        )
