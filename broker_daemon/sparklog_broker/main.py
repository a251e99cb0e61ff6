"""Start and stop of the broker, for `python -m sparklog_broker` and `sparklog broker`.

Start: bind the sockets (a port in use is thus reported before any file is changed), open the data directory, listen,
join the cluster, print the addresses on stdout. Stop (SIGTERM, SIGINT): stop the children, move leaderships to other
brokers, stop accepting, end waiting fetches, finish present requests, seal and close the logs. A second signal ends the
process at once; the next start then recovers the data directory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import grp
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparklog.environment import Environment, real_environment
from sparklog.environment.files import directory_mode
from sparklog.environment.lifeline import has_ended
from sparklog.errors import InvalidConfigError, SparklogError, StorageUnavailableError
from sparklog.metadata.coordination import CoordinationError
from sparklog.security.listeners import LOCALHOST, Listener, SecurityProtocol, is_any_address, registered_endpoints
from sparklog.security.tls import RenewedContext
from sparklog_broker import descriptors
from sparklog_broker.broker import Broker
from sparklog_broker.children.child import Child
from sparklog_broker.children.children import Children
from sparklog_broker.children.kafka_gateway import KafkaGateway, restarts
from sparklog_broker.children.worker import LAKE, MIRROR, Worker, WorkerKind, worker_spec
from sparklog_broker.cluster.cluster_store import ZooKeeperStore
from sparklog_broker.cluster.growth import grow
from sparklog_broker.cluster.peer_connection import PlainConnect
from sparklog_broker.cluster.secure_connect import SecureConnect
from sparklog_broker.config import BrokerConfig, format_address, load_config, parse_address
from sparklog_broker.counters.authentication import AuthenticationCounters
from sparklog_broker.log_format import LogFile, set_up_logging
from sparklog_broker.metrics.service import MetricsService
from sparklog_broker.metrics.watched import MetricSources
from sparklog_broker.network.gateway_claim import GatewayClaim
from sparklog_broker.network.listening import ListenError, bind_all, close_all
from sparklog_broker.network.server import LIMIT_SETTINGS, Server
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS
from sparklog_broker.security.peer_security import PeerSecurity, server_contexts

if TYPE_CHECKING:
    from sparklog_broker.testing.control import ControlServer, Testing
    from sparklog_broker.testing.stage import FaultStage

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
STOP_TIMEOUT_S = 10.0
SWITCH_INTERVAL_S = 0.0005
"""Longest time, in s, for which a thread keeps the interpreter while another thread waits. With Python's default of
5 ms, an I/O thread that verifies batches would delay the event loop.
"""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STDIN = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 stopped, 1 failed, 2 wrong usage or configuration."""
    parser = argparse.ArgumentParser(
        prog="sparklog_broker",
        description="Run a sparklog broker in the foreground until SIGTERM or Ctrl-C.",
        epilog="When it is ready it prints one line, `listening on HOST:PORT`. Messages go to stderr.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings (conf/broker.toml shows all)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="directory of the partitions (default ./sparklog-data)")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address to listen on (default 127.0.0.1:9292; port 0: any)"
    )
    parser.add_argument("--broker-id", type=int, metavar="N", help="number of this broker in its cluster (default 0)")
    parser.add_argument(
        "--zookeeper", metavar="HOST:PORT,…/PATH", help="ZooKeeper of the cluster; without it the broker is alone"
    )
    parser.add_argument("--rack", help="rack of the broker: replicas are spread over racks")
    parser.add_argument(
        "--advertised-listener",
        metavar="HOST:PORT",
        help="address for clients and other brokers (default: as in --listen)",
    )
    parser.add_argument(
        "--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="lowest level that is logged (log.level)"
    )
    parser.add_argument(
        "--end-with-parent", action="store_true", help="stop when standard input, held by the parent process, ends"
    )
    parser.add_argument(
        "--temporary", action="store_true", help="with --end-with-parent: if the parent has ended, remove the directory"
    )
    parser.add_argument("--testing", action="store_true", help="for tests only: let --faults-listen work")
    parser.add_argument(
        "--faults-listen", metavar="HOST:PORT", default="", help="with --testing: take orders for faults by HTTP"
    )
    parsed = parser.parse_args(arguments)
    set_up_logging(parsed.log_level or "INFO")
    try:
        config = load_config(parsed.config, data_dir=parsed.data_dir, listen=parsed.listen, **_cluster_settings(parsed))
    except InvalidConfigError as e:
        return _fail(str(e), EXIT_USAGE)
    try:
        set_up_logging(config.log_level, config.log_format, log_file_of(config))
    except OSError as e:
        return _fail(f"log.file = {config.log_file!r} cannot be written: {e.strerror}", EXIT_FAILED)
    try:
        for warning in config.warnings():
            log.warning("%s", warning)
    except InvalidConfigError as e:
        return _fail(str(e), EXIT_USAGE)
    try:
        testing = _testing(parsed)
    except InvalidConfigError as e:
        return _fail(str(e), EXIT_USAGE)
    if not parsed.end_with_parent:
        return run(config, testing=testing)
    try:
        return run(config, lifeline=_STDIN, testing=testing)
    finally:
        if parsed.temporary and has_ended(_STDIN):  # a living parent removes the directory itself
            import shutil  # a start need not wait for it

            shutil.rmtree(config.data_dir, ignore_errors=True)


def _testing(parsed: argparse.Namespace) -> Testing | None:
    """Return the parts that tests control; None for a broker in production. Raises InvalidConfigError."""
    if not parsed.testing:
        if parsed.faults_listen:
            raise InvalidConfigError(
                "--faults-listen is for tests: it needs --testing, which no broker in production has"
            )
        return None
    from sparklog_broker.testing.control import Testing, check_listen

    if parsed.faults_listen:
        check_listen(parsed.faults_listen)
    log.warning("--testing: tests can move the clock of this broker, and let its requests fail")
    return Testing.create(parsed.faults_listen)


def log_file_of(config: BrokerConfig) -> LogFile | None:
    """Return the file of the broker's log; None for standard error."""
    if not config.log_file:
        return None
    return LogFile(config.data_dir / config.log_file, config.log_file_max_bytes, config.log_file_backups)


def _cluster_settings(parsed: argparse.Namespace) -> dict[str, object]:
    settings = {
        "broker_id": parsed.broker_id,
        "zookeeper_connect": parsed.zookeeper,
        "broker_rack": parsed.rack,
        "advertised_listeners": parsed.advertised_listener,
        "log_level": parsed.log_level,
    }
    return {name: value for name, value in settings.items() if value is not None}


def run(config: BrokerConfig, *, lifeline: int | None = None, testing: Testing | None = None) -> int:
    """Run a broker until a signal, or until the end of file on the descriptor `lifeline`. `testing` None: no test
    controls it. Returns the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    descriptors.raise_limit()
    if config.metrics_listen:
        from sparklog_broker.metrics import rendering  # noqa: F401 - before the freeze; others need not wait for it
    gc.freeze()  # each full collection of the imported objects would stop the event loop for 20 ms
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=None if testing is None else testing.loop) as runner:
            return runner.run(_run(config, lifeline, testing))
    except (ListenError, SparklogError) as e:
        return _fail(str(e), EXIT_FAILED)


def _fail(message: str, code: int) -> int:
    """Print one line on stderr, and return `code`. A traceback would hide the message, which names the error."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


class _Parts(NamedTuple):
    """The parts of the broker that are opened before the first request."""

    broker: Broker
    peers: PeerSecurity


async def _run(config: BrokerConfig, lifeline: int | None, testing: Testing | None) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    ended: list[str] = []

    def end(reason: str) -> None:
        ended.append(reason)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, partial(_on_signal, stop, number))
    if lifeline is not None:
        loop.add_reader(lifeline, partial(_on_parent_ended, loop, stop, lifeline))
    environment = real_environment(int(config.data_file_mode, 8))
    if testing is not None:
        environment = testing.environment(environment)
    metrics = MetricsService(config, loop, environment)
    contexts = server_contexts(config.security)
    sockets = bind_all(config.security.listeners.bound)
    try:
        kafka = KafkaGateway.from_config(config)
        await metrics.start()
        parts = await _open(config, loop, environment, contexts)
    except BaseException:
        close_all(sockets)
        await metrics.stop()
        raise
    broker, peers = parts
    children = Children()
    control: ControlServer | None = None
    try:
        server = _server(config, loop, parts, sockets, kafka, None if testing is None else testing.stage)
        loop.add_signal_handler(signal.SIGHUP, peers.renew)
        server.start()
        peers.start()
        broker.start(on_all_disks_failed=end)
        await broker.join(_endpoints(config, server, kafka), end, [] if kafka is None else kafka.registries)
        metrics.serving(_watched(broker, server, peers.authenticator.counters, children))
        if testing is not None and (control := testing.control_server(broker, loop)) is not None:
            control.start()
        orders = [] if control is None else [f"faults://{control.address}"]
        lines = [*server.addresses, *([] if kafka is None else kafka.addresses), *orders]
        _print_line("".join(f"listening on {line}\n" for line in lines))
        log.info("broker %d serves %s", config.broker_id, config.data_dir)
        if config.lake_worker_enable:
            children.add(_worker(LAKE, config.lake_worker_config, loop, broker, server))
        if config.mirror_worker_enable:
            children.add(_worker(MIRROR, config.mirror_worker_config, loop, broker, server))
        if kafka is not None:
            children.add(Child(kafka.spec(), loop, environment.clock.monotonic_s, restarts=restarts()))
        children.start()
        await stop.wait()
        metrics.draining()
        await children.stop()
        await broker.cluster.leave()
        server.stop_accepting()
        broker.stop_waiting()
        await server.stop(STOP_TIMEOUT_S)
    finally:
        if control is not None:
            control.stop()
        await children.stop()
        if kafka is not None:
            kafka.close()
        close_all(sockets)
        peers.stop()
        try:
            clean = await broker.close()
        finally:
            await metrics.stop()
    if ended:
        return _fail(ended[0], EXIT_FAILED)
    log.info("stopped" if clean else "stopped, but not cleanly; the next start checks the logs")
    return EXIT_OK if clean else EXIT_FAILED


async def _open(
    config: BrokerConfig,
    loop: asyncio.AbstractEventLoop,
    environment: Environment,
    contexts: Mapping[str, RenewedContext],
) -> _Parts:
    """Open the data directory and, if configured, the connection to the cluster. Raises InvalidConfigError, and the
    errors of `_read_store` and `Broker.open`.
    """
    if config.data_file_group:
        give_to_group(config, environment)
    others = _secure_connect(config, environment)
    store = await _read_store(config, loop, environment) if config.zookeeper_connect else None
    # On a thread, so that a second signal can end a long recovery.
    connect = others or PlainConnect()
    broker = await loop.run_in_executor(None, Broker.open, config, loop, environment, store, connect)
    renew_others = partial(_renew_others, others, loop) if others is not None else None
    peers = PeerSecurity(config, loop, environment, broker.users, contexts, renew_others)
    peers.authenticator.on_identified = broker.throttling.identified
    audit = broker.audit
    if audit is not None:
        peers.authenticator.on_failed = lambda peer, reason, text: audit.failed_authentication(
            peer.peer_host, peer.listener, reason, text
        )
    return _Parts(broker, peers)


def _server(
    config: BrokerConfig,
    loop: asyncio.AbstractEventLoop,
    parts: _Parts,
    sockets: list[tuple[Listener, socket.socket]],
    kafka: KafkaGateway | None,
    faults: FaultStage | None,
) -> Server:
    """Return the server that passes requests of the sockets to the broker's handlers. It is not started yet."""
    broker, peers = parts
    answer = Pipeline(
        broker,
        HANDLERS,
        broker.requests,
        broker.access,
        peers.authenticator,
        broker.throttling,
        GatewayClaim(broker.environment.clock.monotonic_s, "" if kafka is None else ", ".join(kafka.addresses)),
        faults,
    ).answer
    server = Server(
        peers.open(sockets, local=config.local_socket_enabled),
        config,
        loop=loop,
        answer=answer,
        budget=broker.memory,
        requests=broker.requests,
        threads=peers.threads,
        authentication_threads=peers.authentication_threads,
        authentication=peers.authenticator.counters,
        greet=peers.authenticator.greet,
        peers=broker.throttling.connections,
        protected_listener=broker.throttling.protected_listener,
        gateways=[] if kafka is None else peers.open_gateways(kafka.local_sockets),
    )
    broker.dynamic.watch(LIMIT_SETTINGS, lambda: server.set_limits(config))
    return server


def _endpoints(config: BrokerConfig, server: Server, kafka: KafkaGateway | None) -> Sequence[str]:
    """Return the addresses that the broker registers. A sole broker registers only configured addresses: without them,
    clients keep the address of their connection, and there are no other brokers.
    """
    is_explicit = config.security.is_advertised
    if not config.zookeeper_connect and not is_explicit:
        return ()
    gateways = {} if kafka is None else kafka.endpoints(server.places)
    return registered_endpoints(config.security.listeners, server.places, explicit=is_explicit, gateways=gateways)


def give_to_group(config: BrokerConfig, environment: Environment) -> None:
    """Change the group of the data directories to `data.file.group`. New files in them get the same group. Raises
    InvalidConfigError, StorageError.
    """
    name = config.data_file_group
    try:
        group = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError as e:
        raise InvalidConfigError(f"data.file.group = {name!r}: the group does not exist") from e
    mode = directory_mode(int(config.data_file_mode, 8)) | stat.S_ISGID
    for directory in (config.data_dir, *config.log_dirs):
        environment.files.make_directory(directory)
        try:
            os.chown(directory, -1, group)
            directory.chmod(mode)
        except OSError as e:
            raise InvalidConfigError(
                f"data.file.group = {name!r}: {directory} cannot be given to it ({e.strerror}): the broker's user has "
                "to be a member of the group, and own the directory"
            ) from e


def _secure_connect(config: BrokerConfig, environment: Environment) -> SecureConnect | None:
    """Return the opener of secure connections to other brokers; None with plain text or without a cluster. Raises
    InvalidConfigError."""
    if not config.zookeeper_connect or config.security.listeners.inter_broker.protocol is SecurityProtocol.PLAINTEXT:
        return None
    threads = environment.executors.pool("peer-authentication", 1)
    return SecureConnect(config.security.as_client(), threads, environment.clock.monotonic_s)


def _renew_others(others: SecureConnect, loop: asyncio.AbstractEventLoop) -> bool:
    """Read the certificates again, on a thread. Returns True if they have changed. Raises InvalidConfigError."""
    changed = others.renew()
    if changed:
        loop.call_soon_threadsafe(others.retire)
    return changed


async def _read_store(
    config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment
) -> ZooKeeperStore:
    """Connect to ZooKeeper, copy this broker's own metadata store into it if there is one, and read the metadata.
    Raises StorageUnavailableError, InvalidConfigError, and the errors of `grow`."""
    try:
        from sparklog.metadata.zookeeper import ZooKeeper
    except ImportError as e:
        raise InvalidConfigError(
            "zookeeper.connect is set, but kazoo is not installed: pip install 'sparklog[cluster]'"
        ) from e
    connect = partial(
        ZooKeeper.connect,
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        login=config.security.zookeeper_login,
        set_acl=bool(config.security.settings["zookeeper.set.acl"]),
        tls=config.security.zookeeper_tls,
    )
    try:
        coordination = await loop.run_in_executor(None, connect)
    except CoordinationError as e:
        raise StorageUnavailableError(str(e)) from e
    try:
        if await loop.run_in_executor(None, grow, config, coordination, environment):
            log.info("the metadata of %s are in ZooKeeper now", config.data_dir)
    except SparklogError:
        coordination.close()
        raise
    return await ZooKeeperStore.read(coordination, config, environment)


def _worker(
    kind: WorkerKind, command_config: str, loop: asyncio.AbstractEventLoop, broker: Broker, server: Server
) -> Worker:
    config = broker.config
    host, port = parse_address(server.address)
    address = format_address(LOCALHOST if is_any_address(host) else host, port)
    needs_login = config.security.listeners.bound[0].protocol is not SecurityProtocol.PLAINTEXT
    obstacle = ""
    if needs_login and not command_config:
        obstacle = f"{kind.command}.worker.config has to name a file with the worker's settings for the first listener"
    defaults = config.topic_defaults
    return Worker(
        kind,
        worker_spec(kind, address, command_config),
        loop,
        broker.environment.clock.monotonic_s,
        lambda: any(kind.is_needed({**defaults, **topic.configs}) for topic in broker.partitions.topics.values()),
        obstacle,
    )


def _watched(
    broker: Broker, server: Server, authentication: AuthenticationCounters, children: Children
) -> MetricSources:
    return MetricSources(
        config=broker.config,
        clock=broker.environment.clock,
        address=server.address,
        server=server,
        requests=broker.requests,
        throttling=broker.throttling,
        memory=broker.memory,
        storage=broker.storage,
        io=broker.io,
        partitions=broker.partitions,
        background=broker.background,
        groups=broker.groups,
        transactions=broker.transactions,
        lakes=broker.lakes,
        mirrors=broker.mirrors,
        cluster=broker.cluster,
        authentication=authentication,
        children=children,
    )


def _print_line(text: str) -> None:
    """Write to standard output. A pipe that the reader has closed is ignored; other failures are logged."""
    try:
        os.write(sys.stdout.fileno(), text.encode())
    except BrokenPipeError:
        pass  # the reader has closed the pipe
    except (OSError, ValueError, AttributeError) as e:  # there is no stream
        log.warning("standard output cannot be written (%s): %s", e, text.strip())


def _on_parent_ended(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, lifeline: int) -> None:
    loop.remove_reader(lifeline)
    log.info("the broker's parent process has ended: stopping")
    stop.set()


def _on_signal(stop: asyncio.Event, number: int) -> None:
    if stop.is_set():
        log.warning("second %s: exiting at once", signal.Signals(number).name)
        logging.shutdown()
        os._exit(EXIT_FAILED)
    log.info("%s: stopping", signal.Signals(number).name)
    stop.set()
