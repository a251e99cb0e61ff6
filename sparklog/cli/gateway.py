"""`sparklog gateway kafka`: runs a gateway that serves Kafka clients from a sparklog broker."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.options import DEFAULT_BOOTSTRAP, AllowInsecure, Bootstrap

app = typer.Typer(
    no_args_is_help=True,
    help="Serve clients of other protocols.",
    epilog="""\
**Where to begin**: set `kafka.listeners` in the broker's configuration, and the broker starts a gateway itself.
`sparklog gateway kafka` runs one by hand.
""",
)

EPILOG = """\
**Examples**

`sparklog gateway kafka` (then `kcat -b 127.0.0.1:9092 -L`)

`sparklog gateway kafka --bootstrap-servers broker:9292 --listen 0.0.0.0:9092 --advertise broker:9092 --sasl`

A gateway that is started by hand passes passwords on to the broker, and the broker sees the gateway's address instead of
the client's. For TLS, certificates and ACLs by address, set `kafka.listeners` in the broker's configuration.
"""


@app.command("kafka", epilog=EPILOG)
def kafka(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 = any free one.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address in the metadata for clients. [default: the address that they connected to]",
        ),
    ] = None,
    sasl: Annotated[
        bool, typer.Option("--sasl", help="Ask clients for a user and a password (SCRAM); the broker checks them.")
    ] = False,
    allow_insecure: AllowInsecure = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve Kafka clients from the first broker of the bootstrap servers that answers."""
    import logging
    import sys

    from sparklog.client.net.addresses import parse_bootstrap, resolve_bootstrap
    from sparklog.errors import InvalidConfigError
    from sparklog.gateway.main import GatewayConfig, run
    from sparklog.security.client_security import PLAINTEXT
    from sparklog.security.listeners import Listener, SecurityProtocol, is_local
    from sparklog.security.tls import RenewedContext, client_context

    protocol = SecurityProtocol.SASL_PLAINTEXT if sasl else SecurityProtocol.PLAINTEXT
    host, port = _address(listen, "--listen")
    if not sasl and not is_local(host) and not allow_insecure:
        raise InvalidConfigError(
            f"--listen {listen} can be reached from other hosts, without a password: listen on 127.0.0.1, use "
            "--sasl or kafka.listeners in the broker's configuration, or allow it with --allow-insecure"
        )
    security = client_security() or PLAINTEXT
    if security.mechanism:
        raise InvalidConfigError("the gateway has no user of its own: it passes on its clients' passwords")
    tls = RenewedContext(client_context, dict(security.tls)).current if security.protocol.tls else None
    listener = Listener(protocol.value, host, port, protocol)
    config = GatewayConfig(
        parse_bootstrap(resolve_bootstrap(bootstrap_servers)),
        [listener],
        advertised={} if advertise is None else {listener.name: _address(advertise, "--advertise")},
        context=tls,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(run(config))


def _address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT; port 0 is allowed. Raises InvalidConfigError."""
    from sparklog.errors import InvalidConfigError

    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidConfigError(f"{option} {text!r}: HOST:PORT is needed, as in 127.0.0.1:9092")
    return host, int(port)
