"""Start and stop of a gateway, for `python -m sparklog.gateway` and `sparklog gateway kafka`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from sparklog.client.net.addresses import Endpoint
from sparklog.errors import PolicyViolationError, SparklogError
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.limits import Limits
from sparklog.gateway.registry import served_apis
from sparklog.gateway.server import GatewayServer, addresses_of
from sparklog.protocol.gateway import DROPPED_FIELDS, REFUSED_BATCHES, REFUSED_RECORDS, decode_start
from sparklog.security.listeners import REGISTRY_NAMES, Listener, SecurityProtocol
from sparklog.security.optional import require
from sparklog.security.tls import RenewedContext, renew_listeners, server_context

if TYPE_CHECKING:
    from sparklog.gateway.rest.server import RestServer

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
BROKER_WAIT_S = 30.0
SWITCH_INTERVAL_S = 0.0005
"""Time in s after which a converting thread lets the waiting event loop run."""
REPLACED_WAIT_S = 5.0
"""Longest wait, in s, for the end of the connections of a gateway that this gateway replaces."""
REPORT_S = 1.0
"""Pause in s between two reports of numbers to the parent process."""
_PAUSE_S = 0.2
_STDIN = 0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class GatewayConfig(Struct, frozen=True):
    """Configuration of one gateway process."""

    bootstrap: Sequence[Endpoint]
    """Addresses of the broker."""
    listeners: Sequence[Listener]
    """Listeners for clients."""
    advertised: Mapping[str, tuple[str, int]] = {}
    """Advertised host and port by the listener's name."""
    limits: Limits = Limits()
    context: ssl.SSLContext | None = None
    """TLS towards the broker; None: the broker's listener does not encrypt."""
    local_sockets: Mapping[str, str] = {}
    """Unix sockets of the broker that has started this gateway, by the listeners' names."""
    descriptors: Mapping[str, int] = {}
    """Descriptors of inherited sockets, which are bound, by the listeners' names."""
    tls: Mapping[str, Mapping[str, object]] = {}
    """TLS settings for clients, by the listeners' names; a listener without an entry does not encrypt."""
    creates_typed_topics: bool = False
    """The broker's setting `auto.create.typed.topics`."""
    schema_registry_url: str = ""
    """Address of an outside schema registry; "": the cluster's own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of a gateway that a broker has started. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="sparklog.gateway", description="Runs the gateway of the parent process.")
    parser.add_argument("--start-from", type=int, required=True, metavar="FD", help="descriptor with the settings")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        start = decode_start(os.pread(parsed.start_from, os.fstat(parsed.start_from).st_size, 0))
    except (OSError, SparklogError) as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    listeners = [Listener(one.name, one.host, one.port, SecurityProtocol(one.protocol)) for one in start.listeners]
    config = GatewayConfig(
        (),
        listeners,
        local_sockets={one.name: one.local_socket for one in start.listeners},
        descriptors={one.name: one.descriptor for one in start.listeners},
        tls={one.name: one.tls for one in start.listeners if one.tls},
        creates_typed_topics=start.creates_typed_topics,
        schema_registry_url=start.schema_registry_url,
        limits=Limits(group_members=start.group_members),
    )
    return run(config, lifeline=_STDIN)


def run(config: GatewayConfig, *, lifeline: int | None = None) -> int:
    """Run a gateway until SIGTERM or SIGINT, or until the descriptor `lifeline` reaches its end because the parent has
    ended."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each client takes two descriptors
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.enable()
    try:
        return asyncio.run(_run(config, lifeline))
    except (OSError, SparklogError) as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return EXIT_FAILED


async def _run(config: GatewayConfig, lifeline: int | None) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if lifeline is not None:
        loop.add_reader(lifeline, partial(_on_parent_ended, loop, stop, lifeline))
    sockets = [(one, _socket(one, config.descriptors)) for one in config.listeners]
    contexts = {name: RenewedContext(server_context, settings) for name, settings in config.tls.items()}
    gateway = Gateway(
        config.bootstrap,
        local_sockets=config.local_sockets,
        advertised=config.advertised,
        limits=config.limits,
        context=config.context,
        name="" if config.local_sockets else _name_of(sockets),
        creates_typed_topics=config.creates_typed_topics,
        schema_registry_url=config.schema_registry_url,
    )
    # The broker closes connections that do not authenticate, so the first one is kept on listeners without SASL only.
    stays_connected = not config.local_sockets and not any(one.protocol.sasl for one in config.listeners)
    await _find_broker(gateway, stop, stays_connected=stays_connected)
    kafka = [one for one in sockets if one[0].name not in REGISTRY_NAMES]
    server = GatewayServer(gateway, served_apis(), kafka, contexts)
    server.start()
    registry = _start_registry(gateway, [one for one in sockets if one not in kafka], contexts)
    running = [] if lifeline is None else [loop.create_task(_report(gateway))]
    if contexts:
        running.append(loop.create_task(_renew(contexts, config.tls)))
    for address in addresses_of(sockets):
        _say(f"listening on {address}\n")
    if kafka:
        clients = ", ".join(server.addresses)
        log.info("the gateway of broker %d serves Kafka's clients on %s", gateway.broker_id, clients)
    await stop.wait()
    for task in running:
        task.cancel()
    await gateway.leave_groups()
    if registry is not None:
        await registry.stop()
    await server.stop()
    gateway.close()
    return EXIT_OK


def _start_registry(
    gateway: Gateway, sockets: Sequence[tuple[Listener, socket.socket]], contexts: Mapping[str, RenewedContext]
) -> RestServer | None:
    """Start the schema registry; None without listeners. Raises InvalidConfigError if its library is missing."""
    if not sockets:
        return None
    require("h11", "the schema registry", "schemas")
    from sparklog.gateway.rest.server import RestServer  # needs the library

    registry = RestServer(gateway, sockets, contexts)
    registry.start()
    log.info("the schema registry serves on %s", ", ".join(addresses_of(sockets)))
    return registry


async def _report(gateway: Gateway) -> None:
    """Tell the parent process the numbers that have changed, until cancelled."""
    reported: dict[str, int] = {}
    while True:
        await asyncio.sleep(REPORT_S)
        counts = {
            REFUSED_BATCHES: gateway.refusals.batches,
            REFUSED_RECORDS: gateway.refusals.records,
            DROPPED_FIELDS: gateway.schemas.dropped,
        }
        for name, count in counts.items():
            if count != reported.get(name, 0):
                _say(f"count {name} {count}\n")
        reported = counts


async def _renew(contexts: Mapping[str, RenewedContext], settings: Mapping[str, Mapping[str, object]]) -> None:
    """Read changed certificates for new connections every `ssl.reload.interval.ms`, until cancelled."""
    pause_s = min(int(str(one["ssl.reload.interval.ms"])) for one in settings.values()) / 1000
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause_s)
        await loop.run_in_executor(None, renew_listeners, contexts)


async def _find_broker(gateway: Gateway, stop: asyncio.Event, *, stays_connected: bool) -> None:
    """Connect to the broker, and try again for BROKER_WAIT_S, because the broker may still be starting, or the claim of
    a silent gateway may be about to end; for REPLACED_WAIT_S while another gateway serves the broker's clients. Raises
    the last error."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not stop.is_set():
        try:
            return await gateway.start(stays_connected=stays_connected)
        except SparklogError as e:
            wait_s = REPLACED_WAIT_S if isinstance(e, PolicyViolationError) else BROKER_WAIT_S if e.retriable else 0.0
            if loop.time() >= begun + wait_s:
                raise
        await asyncio.sleep(_PAUSE_S)
    return None


def _name_of(sockets: Sequence[tuple[Listener, socket.socket]]) -> str:
    """Return a name that no other gateway process has."""
    addresses = ", ".join(f"{host}:{port}" for host, port in (sock.getsockname()[:2] for _, sock in sockets))
    return f"{addresses} (process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(4)})"


def _socket(listener: Listener, descriptors: Mapping[str, int]) -> socket.socket:
    inherited = descriptors.get(listener.name)
    return _bind(listener) if inherited is None else socket.socket(fileno=os.dup(inherited))


def _bind(listener: Listener) -> socket.socket:
    host = listener.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, listener.port))
    except OSError as e:
        sock.close()
        raise OSError(f"cannot listen on {listener}: {e.strerror}") from e
    return sock


def _say(text: str) -> None:
    try:
        os.write(sys.stdout.fileno(), text.encode())
    except OSError as e:
        log.warning("standard output cannot be written (%s): %s", e, text.strip())


def _on_parent_ended(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, lifeline: int) -> None:
    loop.remove_reader(lifeline)
    log.info("the process that has started the gateway has ended: stopping")
    stop.set()
