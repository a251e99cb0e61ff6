"""`sparklog console`: serves web pages that show the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.client_command import client_security, client_settings
from sparklog.cli.options import DEFAULT_BOOTSTRAP, AllowInsecure, Bootstrap, timeout_ms
from sparklog.cli.registry_client import RegistryUrl

EPILOG = """\
**Examples**

`sparklog console` (then open http://127.0.0.1:8080)

`sparklog console --bootstrap-servers broker:9292 --listen 127.0.0.1:9000`

`sparklog console --allow-changes`

`sparklog console --login --command-config cluster.properties --base-path /sparklog`

The console is read-only without --allow-changes, and asks before each change with it. Without --login it has no
passwords: every client that reaches it sees all records. Listen on 127.0.0.1. For other users, use --login at a secured
cluster, put a proxy with TLS before the console, and name the proxy with --allow-host.
"""


def web_console(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 = any free one.")
    ] = "127.0.0.1:8080",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer changes: records, offsets, transactions, topics, settings.")
    ] = False,
    login: Annotated[
        bool,
        typer.Option("--login", help="Ask each browser for a user of the secured cluster, and act as that user."),
    ] = False,
    base_path: Annotated[
        str,
        typer.Option(metavar="PATH", help="Path of the console behind a proxy. [default: X-Forwarded-Prefix]"),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name of the console, for example of a proxy; repeatable."),
    ] = None,
    allow_insecure: AllowInsecure = False,
    url: RegistryUrl = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the cluster in a browser."""
    import logging

    from sparklog.cli.errors import hint_for
    from sparklog.errors import InvalidConfigError

    try:
        from sparklog.console.server import serve
        from sparklog.console.sessions import login_security
        from sparklog.console.web import Options
    except ModuleNotFoundError as e:
        raise InvalidConfigError(f"the console needs the library {e.name}: pip install 'sparklog[console]'") from e
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = Options(
        bootstrap_servers,
        allow_changes,
        timeout_ms(),
        None if login else client_security(),
        base_path,
        login_security(client_settings()) if login else None,
        url or "",
    )
    serve(
        options,
        listen,
        allow_host or [],
        hint_for,
        lambda address: print(f"console on {address}", flush=True),
        allow_insecure=allow_insecure,
    )
