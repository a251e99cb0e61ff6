"""Quotas: the costs of requests by user and client id, and the muting of connections (KIP-219).

The answer is sent at once with `throttle_ms`, and the connection is not read for that time. While a user or client id
is over its quota, its fetches get no records and cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from sparklog.errors import InvalidConfigError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import FetchRequest, ProduceRequest
from sparklog.security.connection_limits import ConnectionLimits, Connections, parse_overrides
from sparklog.security.principals import Principal
from sparklog.security.quota_records import quotas_of
from sparklog.security.quotas import Entity, QuotaKey, QuotaTable, ThrottledEntity, Throttles, Window
from sparklog.security.records import RecordKind
from sparklog_broker.config import BrokerConfig
from sparklog_broker.network.connection import Connection, State
from sparklog_broker.network.reply import THROTTLE_FIELD
from sparklog_broker.security.records import SecurityRecords

log = logging.getLogger(__name__)

CONNECTION_LIMIT_SETTINGS = (
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
)


class TimedRequest(NamedTuple):
    """User, client id and start time of a request that can have a cost."""

    user: str
    client_id: str
    begun_s: float
    debt_ms: int = 0
    """Time in ms until a fetch is within its quota again. Above 0, the fetch gets no records and costs nothing."""


class Throttling:
    """Charges requests and connections. `throttled`: by exceeded quota, the number of mutes and their total ms.
    Event-loop thread only.
    """

    def __init__(self, config: BrokerConfig, records: SecurityRecords, monotonic_s: Callable[[], float]) -> None:
        window = Window(config.quota_window_num, config.quota_window_size_seconds)
        self._throttles = Throttles(QuotaTable(), window, threads=config.num_io_threads + 1)
        self._monotonic_s = monotonic_s
        self.connections = Connections(_limits(config), QuotaTable())
        """Number of connections, and rate of new connections, by user and by address."""
        listeners = config.security.listeners
        has_own = bool(config.zookeeper_connect) and len(listeners.bound) > 1
        self.protected_listener = listeners.inter_broker.name if has_own else None
        """The inter-broker listener, exempt from limits of connections; None if clients use it, too."""
        self._by_key: dict[str, tuple[Entity, dict[QuotaKey, float]]] = {}
        self.throttled: dict[QuotaKey, tuple[int, int]] = {}
        records.watch(RecordKind.QUOTAS, self._follow)

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply CONNECTION_LIMIT_SETTINGS. Open connections stay. Raises InvalidConfigError."""
        self.connections.limits = _limits(config)

    @property
    def is_needed(self) -> bool:
        """True if any quota is set."""
        return bool(self._by_key)

    @property
    def entries(self) -> Mapping[str, tuple[Entity, Mapping[QuotaKey, float]]]:
        """All quotas, by the keys of their records."""
        return self._by_key

    def waiting(self) -> Iterator[ThrottledEntity]:
        """Return the users and client ids that are over their quota now."""
        return self._throttles.waiting(self._now_ms())

    def begin(self, principal: Principal, client_id: str) -> TimedRequest:
        """Record the start of a request. Called before the request is decoded."""
        return TimedRequest(principal.name, client_id, self._monotonic_s())

    def fitted(self, request: Message, begun: TimedRequest) -> tuple[Message, TimedRequest]:
        """Return the request within the limits of its quotas, which is handled in place of the original."""
        if isinstance(request, FetchRequest):
            names = (begun.user, begun.client_id)
            debt_ms = self._throttles.debt_ms(QuotaKey.CONSUMER_BYTE_RATE, *names, self._now_ms())
            if debt_ms:
                return structs.replace(request, max_bytes=0, max_wait_ms=0), begun._replace(debt_ms=debt_ms)
            most = self._throttles.fetch_bytes_max(*names)
            if most < request.max_bytes:
                return structs.replace(request, max_bytes=int(most)), begun
        return request, begun

    def end(
        self,
        begun: TimedRequest,
        request: Message | None,
        answer: Message | None,
        taken_bytes: int,
        sent_bytes: int,
        wait_s: float,
    ) -> int:
        """Charge a request. Returns the time in ms for which its connection is muted, 0 for none, and sets it in the
        answer.

        `request` is None if it could not be decoded; `answer` is None if the request failed or has no answer.
        """
        now_ms, names = self._now_ms(), (begun.user, begun.client_id)
        costs: dict[QuotaKey, float] = {}
        if isinstance(request, ProduceRequest):
            costs[QuotaKey.PRODUCER_BYTE_RATE] = taken_bytes
        elif isinstance(request, FetchRequest) and not begun.debt_ms:
            costs[QuotaKey.CONSUMER_BYTE_RATE] = sent_bytes
        costs[QuotaKey.REQUEST_PERCENTAGE] = max(0.0, self._monotonic_s() - begun.begun_s - wait_s) * 1_000
        waits = {key: self._throttles.charge(key, *names, cost, now_ms) for key, cost in costs.items()}
        if begun.debt_ms:
            waits[QuotaKey.CONSUMER_BYTE_RATE] = begun.debt_ms
        key, throttle_ms = max(waits.items(), key=lambda item: item[1])
        if throttle_ms:
            count, total_ms = self.throttled.get(key, (0, 0))
            self.throttled[key] = (count + 1, total_ms + throttle_ms)
            if answer is not None and THROTTLE_FIELD in answer.__struct_fields__:
                answer.throttle_ms = throttle_ms  # type: ignore[attr-defined]
        return throttle_ms

    def identified(self, connection: Connection) -> None:
        """Count an authenticated connection for its user. Raises TooManyConnectionsError."""
        if connection.listener == self.protected_listener or connection.state is State.CLOSED:
            return
        user = connection.principal.name
        wait_ms = self.connections.identified(user, self._now_ms())
        connection.counted_user = user
        if wait_ms:
            count, total_ms = self.throttled.get(QuotaKey.CONNECTION_CREATION_RATE, (0, 0))
            self.throttled[QuotaKey.CONNECTION_CREATION_RATE] = (count + 1, total_ms + wait_ms)
            if connection.busy:  # the answer to the authentication is sent at once
                connection.mute(wait_ms)
            else:
                connection.mute_now(wait_ms)

    def _now_ms(self) -> int:
        return int(self._monotonic_s() * 1_000)

    def _follow(self, changes: Mapping[str, bytes | None]) -> None:
        for key, value in changes.items():
            self._by_key.pop(key, None)
            if value is not None:
                try:
                    self._by_key[key] = quotas_of(value)
                except InvalidConfigError as e:
                    log.error("quota %s is ignored: %s", key, e)  # noqa: TRY400
        table = QuotaTable(dict(self._by_key.values()))
        self._throttles.replace_table(table)
        self.connections.quotas = table


def _limits(config: BrokerConfig) -> ConnectionLimits:
    """Return the limits of connections in the configuration. Raises InvalidConfigError."""
    return ConnectionLimits(
        config.max_connections_per_ip,
        parse_overrides(config.max_connections_per_ip_overrides),
        config.max_connection_creation_rate,
    )
