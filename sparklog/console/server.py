"""Runs the console's HTTP server."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import uvicorn

from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.registry_client import parse_registry_url
from sparklog.console.app import make_app
from sparklog.console.base_path import check_base_path
from sparklog.console.guard import check_exposure
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.errors import InvalidConfigError, SparklogError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
BACKLOG = 128


def parse_listen(listen: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`; the host "" is all addresses. Raises InvalidConfigError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidConfigError(f"listen {listen!r}: write HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def listening_socket(listen: str) -> tuple[str, socket.socket]:
    """Return the host, and a socket that listens on `HOST:PORT`. Port 0 is any free port. Raises InvalidConfigError."""
    host, port = parse_listen(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as e:
        raise InvalidConfigError(f"cannot listen on {listen}: {e.strerror or e}") from e
    return host, bound


def serve(
    options: Options,
    listen: str,
    allow_hosts: Sequence[str],
    hint: Callable[[SparklogError], str],
    ready: Callable[[str], None],
    *,
    allow_insecure: bool = False,
) -> None:
    """Serve the console until SIGINT or SIGTERM.

    `ready` is called with the console's URL when its socket listens. Raises InvalidConfigError, also for an address
    that other hosts can reach, unless `allow_insecure`.
    """
    parse_bootstrap(options.bootstrap_servers)
    if options.registry_url:
        parse_registry_url(options.registry_url)
    options = replace(options, base_path=check_base_path(options.base_path, "--base-path"))
    if warning := check_exposure(
        listen, parse_listen(listen)[0], allow_insecure=allow_insecure, has_login=options.login is not None
    ):
        log.warning("%s", warning)
    host, sock = listening_socket(listen)
    app = make_app(options, real_environment(), listen_host=host, allow_hosts=allow_hosts, hint=hint)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=3,
    )
    with sock:
        name = f"[{host}]" if ":" in host else host or "0.0.0.0"
        ready(f"http://{name}:{sock.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[sock])
