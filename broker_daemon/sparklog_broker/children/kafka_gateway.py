"""The gateway for Kafka's protocol, as a child process of the broker (`kafka.listeners`).

The broker binds the gateway's sockets and keeps them open. A port that is in use is therefore reported before the
broker changes any file. A restarted gateway serves the same sockets, and clients that connect during its restart wait
in their backlogs. The settings are passed to the gateway in an anonymous file, because they can contain secrets.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from msgspec import structs

from sparklog.protocol.gateway import GatewayListener, GatewayStart, encode_start
from sparklog.security.listeners import GATEWAY_PREFIX, REGISTRY_NAMES, Listener, Listeners, is_any_address
from sparklog.security.secrets import Secret
from sparklog_broker.children.child import ChildSpec
from sparklog_broker.children.restarts import Restarts
from sparklog_broker.config import BrokerConfig, format_address
from sparklog_broker.network.listening import ListenError, bind_all, bind_local, close_all
from sparklog_broker.security_config import BrokerSecurity

BACKLOG = 1024
_MODULE = "sparklog.gateway"
TAKEN_WAIT_S = 10.0
"""Longest wait for a port in use, in s. After a broker was killed, its gateway keeps the ports for a moment."""
RESTART_PAUSE_S_MAX = 4.0
"""Longest pause before a restart of the gateway, in s. During the pause no Kafka client reaches the partitions that the
broker leads, although the broker serves and stays their leader; sessions of group members last 6 s and more."""
_PAUSE_S = 0.1


def restarts() -> Restarts:
    """Return the pauses before restarts of the gateway."""
    return Restarts(longest_s=RESTART_PAUSE_S_MAX)


class KafkaGateway:
    """Sockets and settings of a gateway. Created by `of`."""

    def __init__(self, kafka: Listeners, security: BrokerSecurity, start: GatewayStart | None = None) -> None:
        """Bind the gateway's sockets. `start`: further settings; None for the defaults. Raises ListenError."""
        self._start = start or GatewayStart([])
        self._kafka = kafka
        self._security = security
        self._bound = _bind_all(kafka.bound, time.monotonic() + TAKEN_WAIT_S)
        self.local_sockets: list[tuple[Listener, socket.socket]] = []
        """The Unix sockets on which the broker accepts the gateway's connections, by listener."""
        for listener in security.gateways:
            local = bind_local()
            if local is None:
                self.close()
                raise ListenError(
                    "kafka.listeners needs Unix sockets in the abstract namespace: run the broker on Linux"
                )
            self.local_sockets.append((listener, local))
        for _, sock in self._bound:
            sock.listen(BACKLOG)
        self._settings = -1

    @classmethod
    def from_config(cls, config: BrokerConfig) -> KafkaGateway | None:
        """Return the gateway of `kafka.listeners`; None if that setting is empty. Raises ListenError."""
        kafka = config.security.kafka
        if kafka is None:
            return None
        start = GatewayStart(
            [],
            creates_typed_topics=config.auto_create_typed_topics,
            schema_registry_url=config.schema_registry_url,
            group_members=config.group_max_size,
        )
        return cls(kafka, config.security, start)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the gateway, as `kafka.NAME://HOST:PORT`."""
        return [
            f"{GATEWAY_PREFIX}{listener.name}://{format_address(*sock.getsockname()[:2])}"
            for listener, sock in self._bound
        ]

    @property
    def registries(self) -> list[str]:
        """Addresses of the schema registry, as `https://HOST:PORT`; without HOST if it listens on all addresses."""
        return [
            f"{listener.name}://{format_address('' if is_any_address(listener.host) else listener.host, port)}"
            for listener, sock in self._bound
            if listener.name in REGISTRY_NAMES
            for port in [int(sock.getsockname()[1])]
        ]

    def endpoints(self, places: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
        """Return the addresses of the gateway for clients on other hosts, by the names that brokers use for its
        listeners. `places`: by name, the addresses of the broker's own listeners."""
        endpoints = {}
        native = self._security.listeners.inter_broker.name
        own_host = (self._security.advertised_of(native) or places[native])[0]
        for listener, sock in self._bound:
            name = GATEWAY_PREFIX + listener.name
            port = int(sock.getsockname()[1])
            host = listener.host if listener.host not in ("", "::") else own_host
            endpoints[name] = self._security.advertised_of(name) or (host, port)
        return endpoints

    def spec(self) -> ChildSpec:
        """Write the gateway's settings into an anonymous file, and return the child process that reads them. Callable
        once."""
        listeners = [
            GatewayListener(
                listener.name,
                listener.host,
                int(sock.getsockname()[1]),
                listener.protocol.value,
                sock.fileno(),
                local.getsockname()[1:].decode(),
                _tls(self._security.of(listener)) if listener.protocol.tls else {},
            )
            for (listener, sock), (_, local) in zip(self._bound, self.local_sockets, strict=True)
        ]
        self._settings = os.memfd_create("sparklog-gateway")
        os.write(self._settings, encode_start(structs.replace(self._start, listeners=listeners)))
        command = (sys.executable, "-m", _MODULE, "--start-from", str(self._settings))
        return ChildSpec("kafka-gateway", command, descriptors=(self._settings, *(s.fileno() for _, s in self._bound)))

    def close(self) -> None:
        """Close the sockets and the file with the settings. A second call has no effect."""
        close_all(self._bound)
        close_all(self.local_sockets)
        if getattr(self, "_settings", -1) >= 0:
            os.close(self._settings)
            self._settings = -1


def _bind_all(listeners: Sequence[Listener], deadline_s: float) -> list[tuple[Listener, socket.socket]]:
    while True:
        try:
            return bind_all(listeners)
        except ListenError as e:
            taken = isinstance(e.__cause__, OSError) and e.__cause__.errno == errno.EADDRINUSE
            if not taken or time.monotonic() >= deadline_s:
                raise
        time.sleep(_PAUSE_S)


def _tls(settings: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    """Return the settings of TLS, with secrets revealed."""
    tls_settings: dict[str, str | int | float | bool] = {}
    for name, value in settings.items():
        if name.startswith("ssl."):
            plain = value.reveal() if isinstance(value, Secret) else value
            assert isinstance(plain, str | int | float | bool)
            tls_settings[name] = plain
    return tls_settings
