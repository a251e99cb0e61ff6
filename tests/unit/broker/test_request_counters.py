"""Phases, errors and slow requests."""

from __future__ import annotations

from typing import Any

import pytest
from sparklog_broker.counters.requests import SLOW_LINES_MAX, SLOW_LINES_S, RequestCounters, RequestTimes, error_name
from sparklog_broker.counters.traffic import OTHERS, Traffic

from sparklog.errors import StorageError
from sparklog.protocol.apis import Api

TIMES = RequestTimes(received_s=1.0, begun_s=2.0, answered_s=7.0, wait_s=3.0)
"""One second in the queue, two handled, three waited."""


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records]  # type: ignore[attr-defined]


def test_the_phases_of_a_request_are_all_of_its_time() -> None:
    counters = RequestCounters()
    counters.begin(Api.PRODUCE, 100)
    counters.done(Api.PRODUCE, TIMES, 11.0, 50, "peer")
    ((name, found),) = counters.items()
    phases = {p: getattr(found, p).sum_s for p in ("queue", "handle", "wait", "send", "total")}
    assert name == "PRODUCE"
    assert phases == {"queue": 1.0, "handle": 2.0, "wait": 3.0, "send": 4.0, "total": 10.0}
    assert (found.requests, found.request_bytes, found.response_bytes, found.total.count) == (1, 100, 50, 1)
    assert counters.slow_count == 0, "without a threshold nothing is slow"


def test_errors_are_counted_by_their_codes() -> None:
    counters = RequestCounters()
    counters.failed(Api.FETCH, [1, 3, 1])
    counters.failed(Api.FETCH, [])
    ((name, found),) = counters.items()
    assert (name, found.errors) == ("FETCH", {1: 2, 3: 1})
    assert (error_name(1), error_name(StorageError.code)) == ("OFFSET_OUT_OF_RANGE", "STORAGE")


def test_invented_apis_count_as_one() -> None:
    counters = RequestCounters()
    for api in range(10_000, 10_100):
        counters.begin(api, 1)
        counters.failed(api, [1])
        counters.done(api, TIMES, 11.0, 1, "peer")
    ((name, found),) = counters.items()
    assert (name, found.requests, found.total.count, found.errors) == ("UNKNOWN", 100, 100, {1: 100})


def test_a_slow_request_is_logged_with_its_phases(caplog: pytest.LogCaptureFixture) -> None:
    counters = RequestCounters(slow_s=9.0)
    counters.done(Api.PRODUCE, TIMES, 10.0, 50, "10.0.0.1:99")
    assert fields(caplog) == []
    counters.done(Api.PRODUCE, TIMES, 10.5, 50, "10.0.0.1:99")
    assert counters.slow_count == 1
    assert fields(caplog) == [
        {
            "event": "slow_request",
            "api": "PRODUCE",
            "peer": "10.0.0.1:99",
            "slow_ms": 9500.0,
            "queue_ms": 1000.0,
            "handle_ms": 2000.0,
            "wait_ms": 3000.0,
            "send_ms": 3500.0,
            "response_bytes": 50,
            "without_line": 0,
        }
    ]
    assert "PRODUCE of 10.0.0.1:99 took 9500 ms (queue 1000.0, handle 2000.0, wait 3000.0, send 3500.0)" in caplog.text


def test_a_fetch_may_wait_and_stay_unread(caplog: pytest.LogCaptureFixture) -> None:
    counters = RequestCounters(slow_s=3.0)
    counters.done(Api.FETCH, TIMES, 1000.0, 50, "peer")
    assert counters.slow_count == 0
    counters.done(Api.FETCH, RequestTimes(1.0, 2.0, 5.1, 0.0), 6.0, 50, "peer")
    assert [f["slow_ms"] for f in fields(caplog)] == [4100.0]


def test_slow_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    counters = RequestCounters(slow_s=0.0)
    for _ in range(SLOW_LINES_MAX + 5):
        counters.done(Api.PRODUCE, TIMES, 11.0, 50, "peer")
    assert len(fields(caplog)) == SLOW_LINES_MAX
    counters.done(Api.PRODUCE, TIMES, 11.0 + SLOW_LINES_S, 50, "peer")
    assert counters.slow_count == SLOW_LINES_MAX + 6
    assert [f["without_line"] for f in fields(caplog)] == [0] * SLOW_LINES_MAX + [5]
    assert "5 more since the last line" in caplog.records[-1].message


# Topics have numbers of their own up to a limit


def test_topics_beyond_the_limit_are_counted_together() -> None:
    traffic = Traffic(2)
    a, b, c, d = map(traffic.of, "abcd")
    assert c is d is traffic.others
    assert len({id(a), id(b), id(c)}) == 3
    assert traffic.of("a") is a
    assert [traffic.has_own(t) for t in "abc"] == [True, True, False]
    assert [topic for topic, _ in traffic.items()] == ["a", "b", OTHERS]


def test_a_deleted_topic_gives_its_place_to_a_new_one() -> None:
    traffic = Traffic(1)
    old = traffic.of("a")
    old.bytes_in = 5
    assert traffic.of("b") is traffic.others
    traffic.forget("a")
    traffic.forget("b")
    new = traffic.of("a")
    assert new is not old
    assert new.bytes_in == 0, "another topic of that name begins anew"


def test_without_places_everything_is_one() -> None:
    traffic = Traffic(0)
    assert traffic.of("a") is traffic.others
    assert dict(traffic.items()) == {OTHERS: traffic.others}
