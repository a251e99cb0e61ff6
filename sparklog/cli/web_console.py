"""`sparklog console`: the cluster in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, timeout_ms

EPILOG = """\
**Examples**

`sparklog console` (then open http://127.0.0.1:8080)

`sparklog console --bootstrap-servers broker:9292 --listen 127.0.0.1:9000`

`sparklog console --allow-changes`

The console is read-only without --allow-changes, and asks before each change with it. It has no passwords: every client
that reaches it sees all records. Listen on 127.0.0.1. For other users, put a proxy with logins before the console, and
name the proxy with --allow-host.
"""


def web_console(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 = any free one.")
    ] = "127.0.0.1:8080",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer changes: offsets, transactions, topics, settings.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name of the console, for example of a proxy; repeatable."),
    ] = None,
    allow_insecure: Annotated[
        bool,
        typer.Option("--allow-insecure", help="Listen on an address that other hosts can reach, without passwords."),
    ] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the cluster in a browser."""
    import logging

    from sparklog.cli.errors import hint_for
    from sparklog.errors import InvalidConfigError

    try:
        from sparklog.console.server import serve
        from sparklog.console.web import Options
    except ModuleNotFoundError as e:
        raise InvalidConfigError(f"the console needs the library {e.name}: pip install 'sparklog[console]'") from e
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = Options(bootstrap_servers, allow_changes, timeout_ms(), client_security())
    serve(
        options,
        listen,
        allow_host or [],
        hint_for,
        lambda address: print(f"console on {address}", flush=True),
        allow_insecure=allow_insecure,
    )
