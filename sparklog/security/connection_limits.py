"""How many connections, topics and partitions somebody may have, and how fast connections may come.

The numbers are counted, not measured: what goes beyond is refused with an error that says which limit it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from sparklog.errors import InvalidConfigError, PolicyViolationError, TooManyConnectionsError
from sparklog.security.acls import canonical_host
from sparklog.security.quotas import QuotaKey, QuotaTable
from sparklog.security.token_bucket import Bucket, Rate, charge, full

PEERS_REMEMBERED_MAX = 100_000


class ConnectionLimits(Struct, frozen=True):
    """Kafka's settings `max.connections.per.ip`, `max.connections.per.ip.overrides`, and
    `max.connection.creation.rate` for all peers together. `creation_rate_per_ip`: for each peer. A rate of 0: without
    limit."""

    per_ip_max: int = 2**31 - 1
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: float = 0.0
    creation_rate_per_ip: float = 0.0


def parse_overrides(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: `10.0.0.1:100,[::1]:5`. Raises InvalidConfigError."""
    overrides = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        host, colon, number = part.rpartition(":")
        if not colon or not number.isascii() or not number.isdigit():
            raise InvalidConfigError(f"max.connections.per.ip.overrides: {part!r} is not of the form ADDRESS:NUMBER")
        overrides[canonical_host(host.removeprefix("[").removesuffix("]"))] = int(number)
    return overrides


class Connections:
    """The open connections by peer's address and by user. Every `opened` has its `closed`."""

    def __init__(self, limits: ConnectionLimits, quotas: QuotaTable) -> None:
        self._limits = limits
        self.quotas = quotas
        self._by_ip: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._all: Bucket | None = None
        self._rates: dict[str, Bucket] = {}

    def opened(self, ip: str, now_ms: int) -> int:
        """A connection from `ip` (canonical) has been accepted; how long nothing is to be read from it (ms).

        Raises TooManyConnectionsError; then it is not counted, and is to be closed.
        """
        limit = self._limits.per_ip_overrides.get(ip, self._limits.per_ip_max)
        if self._by_ip[ip] >= limit:
            raise TooManyConnectionsError(f"{ip} has {limit} connections already (max.connections.per.ip)")
        self._by_ip[ip] += 1
        return max(self._creation_wait_ms(now_ms), self._peer_wait_ms(ip, now_ms))

    def identified(self, ip: str, user: str) -> None:
        """The connection turned out to be `user`'s. Raises TooManyConnectionsError; then it is to be closed, without
        user."""
        quota = self.quotas.find(QuotaKey.MAX_CONNECTIONS, user)
        if quota is not None and self._by_user[user] >= quota.limit:
            raise TooManyConnectionsError(f"user {user!r} has {quota.limit:.0f} connections already (max_connections)")
        self._by_user[user] += 1

    def closed(self, ip: str, user: str | None) -> None:
        """A connection that `opened` has counted is gone; `user`: if `identified` has counted it."""
        for counter, name in ((self._by_ip, ip), (self._by_user, user)):
            if name is not None:
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]

    def count(self, *, ip: str | None = None, user: str | None = None) -> int:
        """How many connections the peer, or the user, has now."""
        return self._by_ip.get(ip, 0) if ip is not None else self._by_user.get(user or "", 0)

    def _creation_wait_ms(self, now_ms: int) -> int:
        if not self._limits.creation_rate:
            return 0
        rate = _per_second(self._limits.creation_rate)
        self._all, wait_ms = charge(self._all or full(rate, now_ms), rate, 1, now_ms)
        return wait_ms

    def _peer_wait_ms(self, ip: str, now_ms: int) -> int:
        if not self._limits.creation_rate_per_ip:
            return 0
        rate = _per_second(self._limits.creation_rate_per_ip)
        bucket = self._rates.pop(ip, None) or full(rate, now_ms)
        if len(self._rates) >= PEERS_REMEMBERED_MAX:
            del self._rates[next(iter(self._rates))]  # the one that was used longest ago
        self._rates[ip], wait_ms = charge(bucket, rate, 1, now_ms)
        return wait_ms


def _per_second(limit: float) -> Rate:
    return Rate(limit, max(1.0, limit))


def check_topics(quotas: QuotaTable, user: str, topics: int, partitions: int, new_partitions: int) -> None:
    """Whether `user`, who owns `topics` with `partitions` in all, may make one more with `new_partitions`.

    Raises PolicyViolationError that names the limit.
    """
    for key, wanted in ((QuotaKey.MAX_TOPICS, topics + 1), (QuotaKey.MAX_PARTITIONS, partitions + new_partitions)):
        quota = quotas.find(key, user)
        if quota is not None and wanted > quota.limit:
            raise PolicyViolationError(f"user {user!r} would own {wanted} ({key}); the quota is {quota.limit:.0f}")
