"""Limits of a user's connections, topics and partitions, and of the rate of new connections (KIP-402, KIP-612).

A limit on a number is exact: a request above it is refused, with an error that names the limit. A limit on a rate
causes a delay: the broker reads nothing from the new connection for some time. If the delay would exceed
`CREATION_WAIT_MS_MAX`, the connection is refused. A refused connection adds no delay to later ones, of this peer or of
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from sparklog.errors import InvalidConfigError, PolicyViolationError, TooManyConnectionsError
from sparklog.security.acls import canonical_host
from sparklog.security.quotas import QuotaKey, QuotaTable
from sparklog.security.token_bucket import Bucket, Rate, at, charge, full

PEERS_REMEMBERED_MAX = 100_000
CREATION_WAIT_MS_MAX = 5_000
"""Longest delay of a new connection in ms. It is below the connection timeouts of clients."""
UNLIMITED = 2**31 - 1


class ConnectionLimits(Struct, frozen=True):
    """Kafka's settings `max.connections.per.ip`, `max.connections.per.ip.overrides`, and `max.connection.creation.rate`
    (connections a second, for all peers together)."""

    per_ip_max: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: float = UNLIMITED


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides`, such as `10.0.0.1:100,[::1]:5`. Raises InvalidConfigError."""
    overrides = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        host, colon, number = part.rpartition(":")
        if not colon or not number.isascii() or not number.isdigit():
            raise InvalidConfigError(f"max.connections.per.ip.overrides: {part!r} is not of the form ADDRESS:NUMBER")
        overrides[canonical_host(host.removeprefix("[").removesuffix("]"))] = int(number)
    return overrides


class Connections:
    """The number of open connections by address and by user. Each call of `opened` needs a later call of `closed`,
    unless it raised."""

    def __init__(self, limits: ConnectionLimits, quotas: QuotaTable) -> None:
        self.limits = limits
        self.quotas = quotas
        self._by_ip: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self._rates: dict[tuple[str, str], tuple[Rate, Bucket]] = {}
        """Buckets by kind of limit ("ip", "user", "all") and name, in the order of their last use."""

    def opened(self, ip: str, now_ms: int, *, protected: bool = False) -> int:
        """Count an accepted connection from `ip` (canonical). Returns the time in ms for which nothing must be read
        from it. `protected`: the connection came through the brokers' own listener; it is counted, but no limit
        applies.

        Raises TooManyConnectionsError. The connection is then not counted, and has to be closed.
        """
        if protected:
            self._by_ip[ip] += 1
            return 0
        limit = self.limits.per_ip_overrides.get(ip, self.limits.per_ip_max)
        if self._by_ip[ip] >= limit:
            raise TooManyConnectionsError(
                f"the broker has {limit} connections already (max.connections.per.ip, all from {ip}); close some or "
                "raise it"
            )
        quota = self.quotas.find_ip(ip)
        rates = [] if quota is None else [("ip", ip, quota, "connection_creation_rate")]
        if self.limits.creation_rate < UNLIMITED:
            rates.append(("all", "", self.limits.creation_rate, "max.connection.creation.rate"))
        wait_ms = self._charge(rates, now_ms, ip)
        self._by_ip[ip] += 1
        return wait_ms

    def identified(self, user: str, now_ms: int) -> int:
        """Count an authenticated connection for `user`. Returns the time in ms for which nothing must be read from it.
        Raises TooManyConnectionsError; the connection is then not counted for the user, and has to be closed."""
        quota = self.quotas.find(QuotaKey.MAX_CONNECTIONS, user)
        if quota is not None and self._by_user[user] >= quota.limit:
            raise TooManyConnectionsError(
                f"user {user!r} has {quota.limit:.0f} connections to this broker already (max_connections); close some "
                "or raise the quota: sparklog quota alter"
            )
        rate = self.quotas.find(QuotaKey.CONNECTION_CREATION_RATE, user)
        wait_ms = 0
        if rate is not None:
            wait_ms = self._charge([("user", user, rate.limit, "connection_creation_rate")], now_ms, f"user {user!r}")
        self._by_user[user] += 1
        return wait_ms

    def closed(self, ip: str, user: str | None) -> None:
        """Count the end of a connection. `user`: the user for whom `identified` has counted it; None: it was not called
        or raised."""
        for counter, name in ((self._by_ip, ip), (self._by_user, user)):
            if name is not None:
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]

    def count(self, *, ip: str | None = None, user: str | None = None) -> int:
        """Return the present number of connections from `ip`, or, if `ip` is None, of `user`."""
        return self._by_ip.get(ip, 0) if ip is not None else self._by_user.get(user or "", 0)

    def _charge(self, limits: list[tuple[str, str, float, str]], now_ms: int, peer: str) -> int:
        """Charge one connection to all `limits`, or to none. Returns the longest delay in ms. Raises
        TooManyConnectionsError."""
        charged = []
        for kind, name, per_second, setting in limits:
            rate = Rate(per_second, max(1.0, per_second))
            entry = self._rates.get((kind, name))
            bucket = at(entry[1], rate, now_ms) if entry is not None and entry[0] == rate else full(rate, now_ms)
            after, wait_ms = charge(bucket, rate, 1, now_ms)
            if wait_ms > CREATION_WAIT_MS_MAX:
                whose = "all clients" if kind == "all" else peer
                raise TooManyConnectionsError(
                    f"{whose} opens more than {per_second:g} new connections a second ({setting}); keep connections "
                    "open, connect less often, or raise the limit"
                )
            charged.append(((kind, name), rate, after, wait_ms))
        for key, rate, bucket, _ in charged:
            self._rates.pop(key, None)
            if len(self._rates) >= PEERS_REMEMBERED_MAX:
                del self._rates[next(iter(self._rates))]
            self._rates[key] = (rate, bucket)
        return max((wait_ms for *_, wait_ms in charged), default=0)


def check_topics(quotas: QuotaTable, user: str, topics: int, partitions: int) -> None:
    """Check that `user` may own `topics` topics with `partitions` partitions in total.

    Raises PolicyViolationError, which names the limit.
    """
    for key, count in ((QuotaKey.MAX_TOPICS, topics), (QuotaKey.MAX_PARTITIONS, partitions)):
        quota = quotas.find(key, user)
        if quota is not None and count > quota.limit:
            raise PolicyViolationError(
                f"user {user!r} would own {count} {key.removeprefix('max_')} ({key}); the quota is {quota.limit:.0f}: "
                "delete unused topics, or ask an operator for a higher quota (sparklog quota alter)"
            )
