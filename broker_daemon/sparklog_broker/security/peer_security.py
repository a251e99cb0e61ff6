"""What a broker needs to know its peers: contexts of TLS, keys of tokens, and threads; renewed without a restart."""

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
from sparklog.security.tls import RenewedContext, server_context
from sparklog_broker.config import BrokerConfig
from sparklog_broker.network.listening import OpenListener
from sparklog_broker.security.authenticator import Authenticator
from sparklog_broker.security.tokens import TokenKeys
from sparklog_broker.security.users import Users
from sparklog_broker.security_config import BrokerSecurity

log = logging.getLogger(__name__)


def server_contexts(security: BrokerSecurity) -> dict[str, RenewedContext]:
    """A context for each listener with TLS, by its name. Raises InvalidConfigError that names the listener."""
    contexts = {}
    for listener in security.listeners.bound:
        if listener.protocol.tls:
            try:
                contexts[listener.name] = RenewedContext(server_context, security.of(listener))
            except InvalidConfigError as e:
                raise InvalidConfigError(f"listener {listener.name}: {e}") from None
    return contexts


class PeerSecurity:
    """Event-loop thread only. `contexts`: of `server_contexts`; `renew_others`: looks whether what this broker
    shows to other ones has changed, and raises InvalidConfigError if that is not valid. Raises InvalidConfigError."""

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
        """For the data of connections with TLS."""
        everything = (*security.listeners.bound, *security.gateways)
        authenticates = bool(contexts) or any(one.protocol.sasl for one in everything)
        self.authentication_threads: Executor | None = (
            executors.pool("authentication", config.num_network_threads) if authenticates else None
        )
        """Their own, so that who tries often to get in does not slow down those who are."""
        with_tokens = [one for one in everything if OAUTHBEARER in security.rules(one).mechanisms]
        renewing = executors.daemon("renew-keys") if contexts or with_tokens or renew_others else None
        self._renewing: Executor | None = renewing
        """A server of keys may hang."""
        self._tokens = {
            one.name: TokenKeys(security.of(one), environment.clock.monotonic_s, self._interval_s, renewing)
            for one in with_tokens
            if renewing is not None
        }
        self._timer: asyncio.TimerHandle | None = None
        self.authenticator = Authenticator(
            security, loop, environment.clock, users, self._tokens, self.authentication_threads
        )

    def open(self, sockets: Sequence[tuple[Listener, socket.socket]], *, local: bool) -> list[OpenListener]:
        """The listeners at work on their bound sockets; with `local` a Unix socket beside each that may have one."""
        return [
            OpenListener(one, sock, self._security.rules(one), self._contexts.get(one.name), local=local)
            for one, sock in sockets
        ]

    def open_gateways(self, sockets: Sequence[tuple[Listener, socket.socket]]) -> list[OpenListener]:
        """The Unix sockets of this broker's gateways, whose clients authenticate as on a listener."""
        return [OpenListener(one, sock, self._security.rules(one)) for one, sock in sockets]

    def start(self) -> None:
        """Begins to look for renewed certificates and keys."""
        if self._renewing is not None:
            self.renew()
            self._timer = self._loop.call_later(self._interval_s, self.start)

    def renew(self) -> None:
        """Looks for them now."""
        if self._renewing is not None:
            self._renewing.submit(self._renew)

    def _renew(self) -> None:
        for name, context in self._contexts.items():
            try:
                if context.renew():
                    log.info("listener %s: new connections get the new certificates", name)
            except InvalidConfigError as e:
                log.error("listener %s: the changed certificates are not used: %s", name, e)  # noqa: TRY400
        try:
            if self._renew_others is not None and self._renew_others():
                log.info("connections to other brokers are made anew, with the new certificates")
        except InvalidConfigError as e:
            log.error("to other brokers: the changed certificates are not used: %s", e)  # noqa: TRY400
        for keys in self._tokens.values():
            keys.renew()

    def stop(self) -> None:
        """Again is fine."""
        if self._timer is not None:
            self._timer.cancel()
        for executor in (self.threads, self.authentication_threads, self._renewing):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
