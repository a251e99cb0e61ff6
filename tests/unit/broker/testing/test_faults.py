"""The table of faults, and the clock that tests move."""

from __future__ import annotations

import pytest
from sparklog_broker.testing.control import check_listen
from sparklog_broker.testing.faults import Faults, FullDisk, LoseResponse, Refuse, Slow, error_of, parse_fault
from sparklog_broker.testing.machine import MovedClock, MovedLoop

from sparklog.environment.clock import SystemClock
from sparklog.errors import InvalidConfigError, InvalidRequestError, NotLeaderError
from sparklog.protocol.apis import Api
from tests.support.cases import for_each


def test_a_fault_strikes_its_number_of_requests_of_its_api() -> None:
    faults = Faults()
    faults.add(Refuse("PRODUCE", "NOT_LEADER", times=2))
    assert faults.take(Api.FETCH) is None
    assert [faults.take(Api.PRODUCE) is not None for _ in range(3)] == [True, True, False]


def test_faults_strike_in_their_order_and_until_they_are_cleared() -> None:
    faults = Faults()
    faults.add(LoseResponse("commit"))
    faults.add(Slow("OFFSET_COMMIT", 0.5))
    faults.add(FullDisk())
    taken = [type(faults.take(Api.OFFSET_COMMIT)) for _ in range(3)]
    assert taken == [LoseResponse, Slow, Slow]
    assert [type(fault) for fault in faults.list()] == [Slow, FullDisk]
    faults.clear()
    assert faults.take(Api.OFFSET_COMMIT) is None
    assert not faults.is_disk_full


def test_commit_is_any_commit() -> None:
    faults = Faults()
    faults.add(LoseResponse("COMMIT", times=0))
    apis = (Api.OFFSET_COMMIT, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.END_SHARED_TXN)
    assert all(faults.take(api) is not None for api in apis)


@for_each(
    "body, text",
    [
        (b"{", "no order"),
        (b'{"fault": "explode"}', "explode"),
        (b'{"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER", "extra": 1}', "extra"),
        (b'{"fault": "refuse", "api": "HANDSHAKE", "error": "NOT_LEADER"}', "the requests that can fail are"),
        (b'{"fault": "refuse", "api": "PRODUCE", "error": "BROKEN"}', "the errors are"),
        (b'{"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER", "times": -1}', "times = -1"),
        (b'{"fault": "slow", "api": "FETCH", "seconds": 99999}', "0 to 3600"),
        (b'{"fault": "disconnect", "after_bytes": -1}', "after_bytes = -1"),
    ],
)
def test_wrong_faults_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        parse_fault(body)


def test_errors_have_the_names_of_the_log() -> None:
    assert isinstance(error_of("not_leader"), NotLeaderError)


def test_all_clocks_and_timers_move_together() -> None:
    clock, machine = MovedClock(SystemClock()), SystemClock()
    loop = MovedLoop(clock)
    before = (clock.now_ms(), clock.monotonic_s() * 1000, clock.uptime_ms(), loop.time() * 1000)
    clock.move(8 * 86_400_000)
    after = (clock.now_ms(), clock.monotonic_s() * 1000, clock.uptime_ms(), loop.time() * 1000)
    loop.close()
    assert {round((b - a) / 86_400_000) for a, b in zip(before, after, strict=True)} == {8}
    assert machine.now_ms() < after[0]


@for_each("listen", ["0.0.0.0:0", "example.org:80", "[::]:0"])
def test_orders_are_taken_from_this_machine_only(listen: str) -> None:
    with pytest.raises(InvalidConfigError, match="of this machine"):
        check_listen(listen)
    check_listen("127.0.0.1:0")
