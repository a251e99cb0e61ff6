"""Quotas of users and client ids (KIP-13, KIP-55, KIP-124, KIP-219): pure rules; the caller passes in the time.

A quota is set for an entity: a user, a client id, or both. Each is a name, or the default for all names without a quota
of their own. For a request, the first of these entities with the wanted quota key counts:

    1. user + client id             5. default user + default client id
    2. user + default client id     6. default user
    3. user                         7. client id
    4. default user + client id     8. default client id

All connections of a group share its quota. The entity defines the group: a quota of the default user applies to each
user separately, and a quota without a client id is shared by all clients of a user.

Quotas of new connections (KIP-612) can also be set for addresses: for one address, or the default for all addresses
without a quota of their own. They are independent of users and client ids, because only the address of a new connection
is known.

A request is never refused because of a rate. It is answered at once; the answer contains the time for which the client
shall send nothing (`throttle_ms`), and the broker reads nothing from the connection for that time (KIP-219). A group's
state depends on its own requests only: no group can slow another. New connections have rules of their own, see
`connection_limits`.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.principals import check_name
from sparklog.security.token_bucket import Bucket, Rate, charge, full, throttle_ms

DEFAULT = ""
"""Name that stands for the default of an entity. No user and no client id has this name."""
GROUPS_MAX = 100_000
"""Largest number of groups whose state is kept. Above it, the group without use for the longest time is forgotten,
which makes its bucket full again."""


class QuotaKey(StrEnum):
    """The limited quantity. Kafka has the first four, too."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    MAX_CONNECTIONS = "max_connections"
    MAX_TOPICS = "max_topics"
    MAX_PARTITIONS = "max_partitions"


RATES = frozenset(
    {
        QuotaKey.PRODUCER_BYTE_RATE,
        QuotaKey.CONSUMER_BYTE_RATE,
        QuotaKey.REQUEST_PERCENTAGE,
        QuotaKey.CONNECTION_CREATION_RATE,
    }
)
RATES_MIN: Mapping[QuotaKey, float] = {
    QuotaKey.PRODUCER_BYTE_RATE: 1.0,
    QuotaKey.CONSUMER_BYTE_RATE: 1.0,
    QuotaKey.REQUEST_PERCENTAGE: 0.000_001,
    QuotaKey.CONNECTION_CREATION_RATE: 0.01,
}
"""Smallest rates that can be set. A smaller rate would exclude the user, which is the task of ACLs. A smaller rate that
is already stored counts as this one."""
THROTTLE_MS_MAX = 3_600_000
"""Longest single delay in ms. The rest of a longer debt counts for the next request."""
NUMBERS = (QuotaKey.MAX_CONNECTIONS, QuotaKey.MAX_TOPICS, QuotaKey.MAX_PARTITIONS)
USER_ONLY = frozenset(
    {QuotaKey.CONNECTION_CREATION_RATE, QuotaKey.MAX_CONNECTIONS, QuotaKey.MAX_TOPICS, QuotaKey.MAX_PARTITIONS}
)
"""Quota keys that cannot be set for client ids: a client chooses its id, and so could have any number of them."""


class Entity(NamedTuple):
    """The entity of a quota. A field that is None is not part of the entity; DEFAULT stands for all names without a
    quota of their own."""

    user: str | None = None
    """Name of the user, DEFAULT or None."""
    client_id: str | None = None
    """The client id, DEFAULT or None."""
    ip: str | None = None
    """IP address of clients, DEFAULT or None. Such an entity has no user and no client id."""


Group = tuple[str | None, str | None]
"""User and client id of the connections that share one quota. None: the quota does not distinguish users, or client
ids."""


class Window(NamedTuple):
    """The settings `quota.window.num` and `quota.window.size.seconds`. After idle time, a group may use the quota of
    `burst_s` seconds at once."""

    num: int = 11
    size_s: int = 1

    @property
    def burst_s(self) -> float:
        """Seconds of quota in the largest burst: all windows but the present one, as in Kafka."""
        return max(1, self.num - 1) * self.size_s


class Quota(NamedTuple):
    """The quota of a request. `group`: the connections that share it. `limit`: in the key's unit (bytes/s, percent,
    number)."""

    group: Group
    limit: float


class ThrottledEntity(NamedTuple):
    """A group that has to wait now, and its delay in ms."""

    key: QuotaKey
    group: Group
    throttle_ms: int


class QuotaTable:
    """All quotas that are set, for look-ups."""

    def __init__(self, quotas: Mapping[Entity, Mapping[QuotaKey, float]] | None = None) -> None:
        """Check and take the quotas. Raises InvalidConfigError for an impossible limit, or a key that the entity cannot
        have."""
        self._quotas = {entity: dict(values) for entity, values in (quotas or {}).items()}
        for entity, values in self._quotas.items():
            for key, limit in values.items():
                _check(entity, key, limit)

    def find(self, key: QuotaKey, user: str, client_id: str = DEFAULT) -> Quota | None:
        """Return the quota that applies to a request of `user` with `client_id` (DEFAULT: the client has none); None if
        the request is not limited."""
        for entity in _candidates(user, client_id):
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                group = (None if entity.user is None else user, None if entity.client_id is None else client_id)
                return Quota(group, limit)
        return None

    def find_ip(self, ip: str) -> float | None:
        """Return the number of new connections a second that the address `ip` (canonical) may open; None if it is not
        limited."""
        for entity in (Entity(ip=ip), Entity(ip=DEFAULT)):
            limit = self._quotas.get(entity, {}).get(QuotaKey.CONNECTION_CREATION_RATE)
            if limit is not None:
                return limit
        return None


def canonical_ip(text: str) -> str:
    """Return the canonical text of an IP address. An IPv4 address that is mapped into IPv6 becomes the IPv4 address.
    Raises InvalidConfigError for other texts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError as e:
        raise InvalidConfigError(f"{text[:64]!r} is not an IP address: use an address, not a host name") from e
    return str(getattr(address, "ipv4_mapped", None) or address)


def _candidates(user: str, client_id: str) -> tuple[Entity, ...]:
    named = (Entity(user, client_id), Entity(user, DEFAULT), Entity(user))
    default = (Entity(DEFAULT, client_id), Entity(DEFAULT, DEFAULT), Entity(DEFAULT))
    return (*named, *default, Entity(None, client_id), Entity(None, DEFAULT))


def _check(entity: Entity, key: QuotaKey, limit: float) -> None:
    if entity == Entity():
        raise InvalidConfigError("a quota is for a user, a client id, or both, or for an address")
    if entity.ip is not None:
        if entity.user is not None or entity.client_id is not None:
            raise InvalidConfigError("a quota for an address has no user and no client id")
        if entity.ip != DEFAULT and entity.ip != canonical_ip(entity.ip):
            raise InvalidConfigError(f"{entity.ip!r}: write the address as {canonical_ip(entity.ip)}")
        if key is not QuotaKey.CONNECTION_CREATION_RATE:
            raise InvalidConfigError(f"{key} can be set for users, not for addresses; use connection_creation_rate")
    elif key in USER_ONLY and (entity.user is None or entity.client_id is not None):
        raise InvalidConfigError(f"{key} can be set for users only")
    if not math.isfinite(limit) or limit < 0 or (key in RATES and limit <= 0):
        raise InvalidConfigError(
            f"{key} = {limit}: a number above 0 is needed" if key in RATES else f"{key} = {limit}: at least 0"
        )


def check_entity(entity: Entity) -> None:
    """Check the user in the entity of a new quota. Raises InvalidConfigError for a name that no principal can have."""
    if entity.user not in (None, DEFAULT):
        check_name(str(entity.user))


def check_rates(quotas: Mapping[QuotaKey, float]) -> None:
    """Check new quotas. Raises InvalidConfigError for a rate below RATES_MIN."""
    for key, limit in quotas.items():
        if key in RATES_MIN and limit < RATES_MIN[key]:
            raise InvalidConfigError(
                f"{key} = {limit:g}: at least {RATES_MIN[key]:g}; to keep a user out, use an ACL (sparklog acl)"
            )


class Throttles:
    """The state of all groups: their token buckets. The caller measures the cost of requests, and mutes connections."""

    def __init__(
        self,
        table: QuotaTable,
        window: Window = Window(),  # noqa: B008 (immutable)
        threads: int = 1,
        *,
        groups_max: int = GROUPS_MAX,
    ) -> None:
        """`threads`: number of request threads. As in Kafka, 100 percent are the time of one thread, so one group can
        get at most 100 · threads percent. `groups_max`: see GROUPS_MAX."""
        self._groups_max = groups_max
        self._table = table
        self._window = window
        self._threads = threads
        self._buckets: OrderedDict[tuple[QuotaKey, Group], tuple[Rate, Bucket]] = OrderedDict()

    def replace_table(self, table: QuotaTable) -> None:
        """Replace the quotas. A group whose limit has changed begins with a full bucket of the new size."""
        self._table = table

    def waiting(self, now_ms: int) -> Iterator[ThrottledEntity]:
        """Yield the groups that have to wait at `now_ms`."""
        for (key, group), (rate, bucket) in self._buckets.items():
            if wait_ms := throttle_ms(bucket, rate, now_ms):
                yield ThrottledEntity(key, group, min(wait_ms, THROTTLE_MS_MAX))

    def charge(self, key: QuotaKey, user: str, client_id: str, cost: float, now_ms: int) -> int:
        """Charge `cost` to the group of a request. Returns the time in ms for which the connection has to be muted.

        `cost` is in bytes; for `request_percentage` in ms of a thread's time; for `connection_creation_rate` in
        connections.
        """
        quota = self._table.find(key, user, client_id)
        if quota is None:
            return 0
        rate, bucket = self._bucket(key, quota, now_ms)
        charged, wait_ms = charge(bucket, rate, cost, now_ms)
        self._buckets[key, quota.group] = (rate, charged)
        return min(wait_ms, THROTTLE_MS_MAX)

    def debt_ms(self, key: QuotaKey, user: str, client_id: str, now_ms: int) -> int:
        """Return the present delay of the request's group in ms. A fetch during such a delay, which another connection
        of the group has caused, gets an answer without records and costs nothing."""
        quota = self._table.find(key, user, client_id)
        if quota is None:
            return 0
        rate, bucket = self._bucket(key, quota, now_ms)
        return min(throttle_ms(bucket, rate, now_ms), THROTTLE_MS_MAX)

    def fetch_bytes_max(self, user: str, client_id: str) -> float:
        """Return the largest useful size in bytes of the answer to one fetch: the content of a full bucket. Infinite
        without a quota."""
        quota = self._table.find(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        return math.inf if quota is None else self._rate(QuotaKey.CONSUMER_BYTE_RATE, quota.limit).burst

    def _bucket(self, key: QuotaKey, quota: Quota, now_ms: int) -> tuple[Rate, Bucket]:
        rate = self._rate(key, quota.limit)
        entry = self._buckets.get((key, quota.group))
        if entry is not None and entry[0] == rate:
            self._buckets.move_to_end((key, quota.group))
            return entry
        if entry is None and len(self._buckets) >= self._groups_max:
            self._buckets.popitem(last=False)
        return rate, full(rate, now_ms)

    def _rate(self, key: QuotaKey, limit: float) -> Rate:
        if key is QuotaKey.REQUEST_PERCENTAGE:
            # 100 percent are 1,000 ms of a thread in a second; a delay of one window at most, so that heartbeats pass
            per_second = min(limit, 100 * self._threads) * 10
            return Rate(per_second, per_second * self._window.burst_s, self._window.size_s * 1000)
        limit = max(limit, RATES_MIN[key])
        return Rate(limit, max(1.0, limit * self._window.burst_s))
