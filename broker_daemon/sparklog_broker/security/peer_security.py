"""TLS contexts, keys of tokens, and threads with which the broker authenticates peers; renewed without a restart."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from sparklog.environment import Environment
from sparklog.errors import InvalidConfigError
from sparklog.security.listeners import Listener
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.tls import RenewedContext, renew_listeners, server_context
from sparklog_broker.config import BrokerConfig
from sparklog_broker.network.listening import OpenListener
from sparklog_broker.security.authenticator import Authenticator
from sparklog_broker.security.tokens import TokenKeys
from sparklog_broker.security.users import Users
from sparklog_broker.security_config import BrokerSecurity

log = logging.getLogger(__name__)


def server_contexts(security: BrokerSecurity) -> dict[str, RenewedContext]:
    """Return, by name, a context for each listener with TLS. Raises InvalidConfigError, which names the listener."""
    contexts = {}
    for listener in security.listeners.bound:
        if listener.protocol.tls:
            try:
                contexts[listener.name] = RenewedContext(server_context, security.of(listener))
            except InvalidConfigError as e:
                raise InvalidConfigError(f"listener {listener.name}: {e}") from None
    return contexts


class PeerSecurity:
    """The contexts, keys and threads. Event-loop thread only.

    `contexts`: the result of `server_contexts`. `renew_others` returns True if this broker's own certificates for other
    brokers have changed; it raises InvalidConfigError if they are invalid. The constructor raises InvalidConfigError.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        users: Users,
        contexts: Mapping[str, RenewedContext],
        renew_others: Callable[[], bool] | None = None,
    ) -> None:
        security = config.security
        self._security = security
        self._loop = loop
        self._contexts = contexts
        self._renew_others = renew_others
        self._interval_s = int(str(security.settings["ssl.reload.interval.ms"])) / 1000
        executors = environment.executors
        self.threads: Executor | None = executors.pool("tls", config.num_network_threads) if contexts else None
        """Threads that encrypt and decrypt the data of TLS connections; None without TLS."""
        everything = (*security.listeners.bound, *security.gateways)
        authenticates = bool(contexts) or any(one.protocol.sasl for one in everything)
        self.authentication_threads: Executor | None = (
            executors.pool("authentication", config.num_network_threads) if authenticates else None
        )
        """Separate threads, so that frequent attempts to authenticate do not slow down authenticated peers."""
        with_tokens = [one for one in everything if OAUTHBEARER in security.rules(one).mechanisms]
        self._renewing: Executor | None = executors.daemon("renew-certificates") if contexts or renew_others else None
        self._reading: dict[str, Executor] = {one.name: executors.daemon("renew-keys") for one in with_tokens}
        """By listener, a thread that reads its keys. A server of keys can hang, which must not delay renewed
        certificates, or the keys of other listeners."""
        self._tokens = {
            one.name: TokenKeys(
                security.of(one),
                environment.clock.monotonic_s,
                self._interval_s,
                self._reading[one.name],
                waits_max=max(config.num_network_threads // 2, 1),
            )
            for one in with_tokens
        }
        self._timer: asyncio.TimerHandle | None = None
        self.authenticator = Authenticator(
            security, loop, environment.clock, users, self._tokens, self.authentication_threads
        )

    def open(self, sockets: Sequence[tuple[Listener, socket.socket]], *, local: bool) -> list[OpenListener]:
        """Open the listeners on their bound sockets. With `local`, listeners that allow it also get a Unix socket."""
        return [
            OpenListener(one, sock, self._security.rules(one), self._contexts.get(one.name), local=local)
            for one, sock in sockets
        ]

    def open_gateways(self, sockets: Sequence[tuple[Listener, socket.socket]]) -> list[OpenListener]:
        """Open the Unix sockets of this broker's gateways, whose clients authenticate as on a listener."""
        return [OpenListener(one, sock, self._security.rules(one)) for one, sock in sockets]

    def start(self) -> None:
        """Begin to check for renewed certificates and keys, at intervals."""
        if self._renewing is not None or self._tokens:
            self.renew()
            self._timer = self._loop.call_later(self._interval_s, self.start)

    def renew(self) -> None:
        """Check for renewed certificates and keys now, on threads."""
        if self._renewing is not None:
            self._renewing.submit(self._renew_certificates)
        for keys in self._tokens.values():
            keys.renew_soon()

    def _renew_certificates(self) -> None:
        renew_listeners(self._contexts)
        try:
            if self._renew_others is not None and self._renew_others():
                log.info("reconnecting to other brokers with the new certificates")
        except InvalidConfigError as e:
            log.error("connections to other brokers: the changed certificates cannot be used: %s", e)  # noqa: TRY400

    def stop(self) -> None:
        """Stop the timer and the threads. A second call has no effect."""
        if self._timer is not None:
            self._timer.cancel()
        for executor in (self.threads, self.authentication_threads, self._renewing, *self._reading.values()):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
