"""Quotas: the quota that counts, the delays, and no delay for other users."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError, PolicyViolationError, TooManyConnectionsError
from sparklog.security.connection_limits import ConnectionLimits, Connections, check_topics, parse_overrides
from sparklog.security.quota_records import quota_record
from sparklog.security.quotas import (
    DEFAULT,
    RATES_MIN,
    THROTTLE_MS_MAX,
    Entity,
    QuotaKey,
    QuotaTable,
    Throttles,
    Window,
)
from sparklog.security.token_bucket import Bucket, Rate, charge, full
from tests.support.cases import for_each

PRODUCE, FETCH, REQUEST = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
ORDER = [
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u"),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "c"),
    Entity(None, DEFAULT),
]
GROUPS = [("u", "c"), ("u", "c"), ("u", None), ("u", "c"), ("u", "c"), ("u", None), (None, "c"), (None, "c")]


@for_each("first", range(8))
def test_the_most_specific_entity_counts(first: int) -> None:
    table = QuotaTable({entity: {PRODUCE: float(i + 1)} for i, entity in enumerate(ORDER) if i >= first})
    found = table.find(PRODUCE, "u", "c")
    assert found == (GROUPS[first], first + 1)
    assert table.find(FETCH, "u", "c") is None


def test_an_entity_without_the_key_leaves_it_to_the_next() -> None:
    table = QuotaTable({Entity("u", "c"): {FETCH: 1}, Entity("u"): {PRODUCE: 2}})
    assert table.find(PRODUCE, "u", "c") == (("u", None), 2)
    assert table.find(PRODUCE, "other", "c") is None


@pytest.mark.parametrize(
    ("entity", "key", "limit"),
    [
        (Entity(), PRODUCE, 1),
        (Entity("u"), PRODUCE, 0),
        (Entity("u"), PRODUCE, -1),
        (Entity("u"), PRODUCE, math.inf),
        (Entity("u"), PRODUCE, math.nan),
        (Entity("u"), QuotaKey.MAX_TOPICS, -1),
        (Entity(None, "c"), QuotaKey.MAX_TOPICS, 1),
        (Entity("u", "c"), QuotaKey.MAX_CONNECTIONS, 1),
    ],
)
def test_quotas_that_are_refused(entity: Entity, key: QuotaKey, limit: float) -> None:
    with pytest.raises(InvalidConfigError):
        QuotaTable({entity: {key: limit}})


def throttles(window: Window = Window(num=2, size_s=1), **limits: float) -> Throttles:  # noqa: B008 (immutable)
    return Throttles(
        QuotaTable({Entity(user): {PRODUCE: limit, FETCH: limit} for user, limit in limits.items()}), window
    )


def test_a_burst_is_free_and_a_debt_is_waited_for() -> None:
    state = throttles(u=1000)
    assert state.charge(PRODUCE, "u", "", 1000, 0) == 0
    assert state.charge(PRODUCE, "u", "", 500, 0) == 500
    assert state.debt_ms(PRODUCE, "u", "", 200) == 300
    assert state.charge(PRODUCE, "u", "", 0, 500) == 0
    assert state.charge(PRODUCE, "u", "", 10**6, 10_000) == 999_000
    assert state.charge(PRODUCE, "nobody", "", 10**12, 0) == 0
    assert state.charge(FETCH, "u", "", 1000, 0) == 0  # a quota of its own


def test_the_burst_is_the_windows() -> None:
    assert throttles(Window(), u=1000).charge(PRODUCE, "u", "", 10_000, 0) == 0
    assert throttles(Window(), u=1000).charge(PRODUCE, "u", "", 10_001, 0) == 1
    assert throttles(Window(1, 5), u=1000).fetch_bytes_max("u", "") == 5000
    assert throttles(u=1000).fetch_bytes_max("nobody", "") == math.inf


def test_clients_of_a_user_share_its_quota_and_default_users_do_not() -> None:
    state = throttles(u=1000)
    state.charge(PRODUCE, "u", "one", 1000, 0)
    assert state.charge(PRODUCE, "u", "two", 100, 0) == 100
    defaults = Throttles(QuotaTable({Entity(DEFAULT): {PRODUCE: 1000}}), Window(2, 1))
    defaults.charge(PRODUCE, "a", "", 5000, 0)
    assert defaults.charge(PRODUCE, "b", "", 1000, 0) == 0


def test_request_time_is_a_share_of_the_threads_and_waits_are_short() -> None:
    state = Throttles(QuotaTable({Entity("u"): {REQUEST: 50}}), Window(2, 1), threads=2)
    assert state.charge(REQUEST, "u", "", 500, 0) == 0  # half a thread for one second
    assert state.charge(REQUEST, "u", "", 100, 0) == 200
    assert state.charge(REQUEST, "u", "", 60_000, 0) == 1_000
    assert state.debt_ms(REQUEST, "u", "", 1_000) == 0
    most = Throttles(QuotaTable({Entity("u"): {REQUEST: 10_000}}), Window(2, 1), threads=2)
    assert most.charge(REQUEST, "u", "", 2_100, 0) == 50


def test_a_changed_quota_counts_at_once() -> None:
    state = throttles(u=1000)
    state.charge(PRODUCE, "u", "", 100_000, 0)
    state.replace_table(QuotaTable({Entity("u"): {PRODUCE: 2000}}))
    assert state.debt_ms(PRODUCE, "u", "", 0) == 0
    state.replace_table(QuotaTable())
    assert state.charge(PRODUCE, "u", "", 10**9, 0) == 0


def test_groups_that_are_remembered_are_bounded() -> None:
    """The one forgotten is the one used longest ago, not the one in debt that is at work."""
    state = Throttles(QuotaTable({Entity(DEFAULT): {PRODUCE: 1000}}), Window(2, 1), groups_max=3)
    for n in range(10):
        state.charge(PRODUCE, "busy", "", 2000, 0)
        state.charge(PRODUCE, f"u{n}", "", 1, 0)
        assert len(state._buckets) <= 3
    assert state.debt_ms(PRODUCE, "busy", "", 0) == 19_000


COSTS = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 5_000)), max_size=30)


@given(COSTS, st.integers(1, 2_000), st.integers(1, 3_000))
def test_an_obedient_client_keeps_the_rate_over_every_span(
    requests: list[tuple[int, int]], per_second: int, burst: int
) -> None:
    rate = Rate(per_second, burst)
    bucket, now_ms, done = full(rate, 0), 0, list[tuple[int, int]]()
    for pause_ms, cost in requests:
        now_ms += pause_ms
        bucket, wait_ms = charge(bucket, rate, cost, now_ms)
        done.append((now_ms, cost))
        now_ms += wait_ms
    for i in range(len(done)):
        for j in range(i, len(done)):
            span_ms = done[j][0] - done[i][0]
            allowed = burst + per_second * span_ms / 1000 + done[j][1]
            assert sum(cost for _, cost in done[i : j + 1]) <= allowed + 1e-3


@given(COSTS, st.integers(1, 2_000))
def test_no_client_waits_longer_than_needed(requests: list[tuple[int, int]], per_second: int) -> None:
    rate = Rate(per_second, per_second)
    bucket, now_ms = full(rate, 0), 0
    for pause_ms, cost in requests:
        now_ms += pause_ms
        bucket, wait_ms = charge(bucket, rate, cost, now_ms)
        assert (wait_ms == 0) == (bucket.tokens > -1e-6)
        if wait_ms:
            assert charge(bucket, rate, 0, now_ms + wait_ms)[1] == 0
            assert charge(bucket, rate, 0, now_ms + wait_ms - 1)[1] == 1


def test_a_clock_that_goes_back_takes_no_credit_away() -> None:
    rate = Rate(1000, 1000)
    assert charge(Bucket(500, 1_000), rate, 0, 0) == (Bucket(500, 1_000), 0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.sampled_from([PRODUCE, FETCH]), st.integers(0, 5_000), st.integers(0, 500)
    ),
    max_size=40,
)


@given(EVENTS, st.sampled_from(["a", "b", "c"]))
def test_no_throttled_client_slows_another(events: list[tuple[str, QuotaKey, int, int]], one: str) -> None:
    """The answers to one user are the same with and without the others' requests in between."""
    table = QuotaTable({Entity(DEFAULT): {PRODUCE: 1000, FETCH: 700}, Entity("b"): {PRODUCE: 1}})
    together, alone, now_ms = Throttles(table, Window(2, 1)), Throttles(table, Window(2, 1)), 0
    for who, key, cost, pause_ms in events:
        now_ms += pause_ms
        told = together.charge(key, who, "", cost, now_ms)
        if who == one:
            assert told == alone.charge(key, who, "", cost, now_ms)


def test_connections_by_peer_and_user() -> None:
    connections = Connections(
        ConnectionLimits(2, parse_overrides("10.0.0.9:3, [::1]:1")),
        QuotaTable({Entity("u"): {QuotaKey.MAX_CONNECTIONS: 1}}),
    )
    connections.opened("10.0.0.1", 0)
    connections.opened("10.0.0.1", 0)
    with pytest.raises(
        TooManyConnectionsError, match=r"has 2 connections already \(max.connections.per.ip, all from 10\.0\.0\.1\)"
    ):
        connections.opened("10.0.0.1", 0)
    connections.opened("::1", 0)
    with pytest.raises(TooManyConnectionsError):
        connections.opened("::1", 0)
    connections.identified("u", 0)
    connections.identified("free", 0)
    with pytest.raises(TooManyConnectionsError, match="'u' has 1"):
        connections.identified("u", 0)
    connections.closed("::1", None)
    connections.closed("10.0.0.1", "u")
    connections.identified("u", 0)
    assert (connections.count(ip="10.0.0.1"), connections.count(user="u"), connections.count(ip="::1")) == (1, 1, 0)
    connections.closed("10.0.0.1", "u")
    connections.closed("10.0.0.1", "free")
    assert not connections._by_ip
    assert not connections._by_user


RATE = QuotaKey.CONNECTION_CREATION_RATE


def test_connections_that_come_too_fast_wait_and_then_are_refused() -> None:
    table = QuotaTable({Entity(ip="10.0.0.1"): {RATE: 2}})
    per_ip = Connections(ConnectionLimits(), table)
    assert [per_ip.opened("10.0.0.1", 0) for _ in range(4)] == [0, 0, 500, 1000]
    assert per_ip.opened("10.0.0.2", 0) == 0
    for _ in range(8):
        assert per_ip.opened("10.0.0.1", 0) <= 5_000
    for _ in range(1_000):
        with pytest.raises(TooManyConnectionsError, match="more than 2 new connections a second"):
            per_ip.opened("10.0.0.1", 0)
    assert per_ip.opened("10.0.0.1", 6_000) == 0, "refusals cost nothing: the debt is paid as soon as before"
    together = Connections(ConnectionLimits(creation_rate=1), QuotaTable())
    assert [together.opened(ip, 0) for ip in "abc"] == [0, 1000, 2000]
    assert together.opened("a", 10_000) == 0
    assert Connections(ConnectionLimits(0, creation_rate=1), QuotaTable()).opened("a", 0, protected=True) == 0


@given(st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2"]), st.integers(0, 300)), max_size=60))
def test_a_peer_that_connects_in_a_loop_does_not_slow_another(events: list[tuple[str, int]]) -> None:
    """The answers to the second peer are the same without the first one's connections, any number of which is
    refused."""
    table = QuotaTable({Entity(ip=DEFAULT): {RATE: 1}})
    together, alone = (Connections(ConnectionLimits(per_ip_max=9), table) for _ in range(2))

    def told(connections: Connections, ip: str, now_ms: int) -> int | str:
        try:
            return connections.opened(ip, now_ms)
        except TooManyConnectionsError as e:
            return str(e)

    now_ms = 0
    for ip, pause_ms in events:
        now_ms += pause_ms
        outcome = told(together, ip, now_ms)
        if ip == "10.0.0.2":
            assert outcome == told(alone, ip, now_ms)


def test_a_refused_peer_uses_no_part_of_the_common_rate() -> None:
    table = QuotaTable({Entity(ip="10.0.0.1"): {RATE: 1}})
    connections = Connections(ConnectionLimits(creation_rate=100), table)
    for _ in range(1_000):
        with contextlib.suppress(TooManyConnectionsError):
            connections.opened("10.0.0.1", 0)
    assert [connections.opened("10.0.0.2", 0) for _ in range(90)] == [0] * 90


def test_connections_of_a_user_that_come_too_fast() -> None:
    connections = Connections(ConnectionLimits(), QuotaTable({Entity(DEFAULT): {RATE: 1}}))
    assert [connections.identified("u", 0) for _ in range(3)] == [0, 1000, 2000]
    assert connections.identified("other", 0) == 0


@pytest.mark.parametrize(
    ("entity", "key"),
    [
        (Entity(ip="host"), RATE),
        (Entity(ip="::ffff:10.0.0.1"), RATE),
        (Entity(ip="10.0.0.1"), QuotaKey.PRODUCER_BYTE_RATE),
        (Entity("u", ip="10.0.0.1"), RATE),
        (Entity(client_id="c"), RATE),
    ],
)
def test_quotas_of_addresses_that_are_refused(entity: Entity, key: QuotaKey) -> None:
    with pytest.raises(InvalidConfigError):
        QuotaTable({entity: {key: 1}})


@for_each("text", ["10.0.0.1", "10.0.0.1:x", "host:1", "10.0.0.1:-1", ":1"])
def test_overrides_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_overrides(text)


def test_topics_and_partitions_of_a_user() -> None:
    table = QuotaTable({Entity(DEFAULT): {QuotaKey.MAX_TOPICS: 2, QuotaKey.MAX_PARTITIONS: 10}})
    check_topics(table, "u", 2, 10)
    with pytest.raises(PolicyViolationError, match="max_topics"):
        check_topics(table, "u", 3, 3)
    with pytest.raises(PolicyViolationError, match="max_partitions"):
        check_topics(table, "u", 2, 11)
    check_topics(QuotaTable(), "u", 10**6, 10**7)


TINY_AND_HUGE = [5e-324, 1e-300, 1e-9, 1e300, 1.7e308]


@for_each("limit", TINY_AND_HUGE)
@for_each("key", sorted(RATES_MIN))
def test_no_rate_overflows_or_mutes_for_ever(key: QuotaKey, limit: float) -> None:
    found = Throttles(QuotaTable({Entity("u"): {key: limit}}))
    now_ms = 0
    for cost in (1, 100 * 2**20, 2**62, 1):
        wait_ms = found.charge(key, "u", "", cost, now_ms)
        assert 0 <= wait_ms <= THROTTLE_MS_MAX
        assert found.debt_ms(key, "u", "", now_ms) == wait_ms
        assert all(t.throttle_ms <= THROTTLE_MS_MAX for t in found.waiting(now_ms))
        now_ms += wait_ms


def test_a_debt_that_is_not_paid_after_the_longest_wait_counts_on() -> None:
    found = throttles(u=1.0)
    assert found.charge(QuotaKey.PRODUCER_BYTE_RATE, "u", "", 10_000_000, 0) == THROTTLE_MS_MAX
    assert found.charge(QuotaKey.PRODUCER_BYTE_RATE, "u", "", 1, THROTTLE_MS_MAX) == THROTTLE_MS_MAX
    assert found.debt_ms(QuotaKey.PRODUCER_BYTE_RATE, "u", "", 20_000_000_000) == 0


@for_each("limit", [5e-324, 1e-300, 1e-7])
def test_an_invalid_rate_is_refused_with_the_remedy(limit: float) -> None:
    for key, least in RATES_MIN.items():
        with pytest.raises(InvalidConfigError, match="use an ACL"):
            quota_record(Entity("u"), {key: limit})
        assert quota_record(Entity("u"), {key: least})[1] is not None


@for_each("rate", [5e-324, 1e-300, 0.001, 0.1])
def test_a_connection_is_never_muted_longer_than_its_client_waits(rate: float) -> None:
    connections = Connections(
        ConnectionLimits(), QuotaTable({Entity(ip="10.0.0.1"): {QuotaKey.CONNECTION_CREATION_RATE: rate}})
    )
    assert connections.opened("10.0.0.1", 0) == 0
    with pytest.raises(TooManyConnectionsError, match="opens more than"):
        connections.opened("10.0.0.1", 0)
    assert connections.opened("10.0.0.2", 0) == 0
