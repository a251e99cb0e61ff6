"""No test fails because the machine is slow: limits of real time are 30 s or longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.time_limits import limits_in, limits_of_tests

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (
    "tests/simulation/",  # its clock is virtual
    "tests/campaigns/benchmarks/",
    "tests/campaigns/fuzz/",
    "tests/campaigns/gateway_suites/",
    "tests/campaigns/matrix/",
    "tests/campaigns/torture/",
)
"""Folders that are no part of the gate, and those without real time."""
EXPIRES = "the call fails, or gives up an attempt, at this limit: that is the behaviour under test"
PAUSE = "a pause or a look, after which the test goes on"
NO_CLOCK = "no real time"
EXCEPTIONS = {
    "system/mirrors/test_mirror_administration.py::": EXPIRES,
    "system/test_early_failover.py::test_the_leader_and_controller_is_replaced_within_its_session": PAUSE,
    "system/test_groups.py::test_pause_keeps_the_member_alive": PAUSE,
    "system/test_kafka_gateway_hostile.py::test_well_formed_requests_with_any_values_are_survived": PAUSE,
    "system/test_registry_logins.py::test_a_token_that_expires_ends_the_use_of_a_connection": EXPIRES,
    "system/test_secured_brokers.py::test_other_users_are_refused_everywhere": EXPIRES,
    "system/test_sql.py::test_a_broker_that_is_gone": EXPIRES,
    "system/test_throttled_neighbours.py::test_a_producer_waits_for_its_quota_on_the_connection_that_it_has": "the "
    "quota's pause must be longer",
    "unit/broker/test_connection.py::test_a_handler_runs_in_a_task_of_its_own": EXPIRES,
    "unit/broker/test_request_counters.py::": NO_CLOCK,
    "unit/client/admin/test_changes.py::test_a_change_that_times_out_names_the_controller_of_a_cluster": EXPIRES,
    "unit/client/consumer/test_polls_that_receive.py::test_a_late_answer_is_abandoned": EXPIRES,
    "unit/client/net/test_brokers_that_come_later.py::"
    "test_where_no_broker_comes_the_error_names_the_address_and_the_limit": EXPIRES,
    "unit/client/net/test_connection.py::test_an_unread_answer_is_not_late": EXPIRES,
    "unit/client/net/test_connection.py::test_a_timeout_closes_the_connection": EXPIRES,
    "unit/client/net/test_registry_client.py::test_an_answer_that_never_ends_takes_no_longer_than_the_limit": EXPIRES,
    "unit/client/net/test_leader_questions.py::test_the_error_of_a_deletion_names_the_completed_part": EXPIRES,
    "unit/client/net/test_broker_liveness.py::test_a_member_that_is_slow_is_waited_for": EXPIRES,
    "unit/client/net/test_silent_servers.py::": EXPIRES,
    "unit/client/producer/test_futures.py::test_wait_takes_records_of_one_batch_and_of_several": EXPIRES,
    "unit/client/producer/test_futures.py::test_two_threads_that_wait_for_the_same_futures_do_not_meet": EXPIRES,
    "unit/client/producer/test_idempotence.py::"
    "test_several_requests_of_a_partition_are_under_way_and_at_most_five_batches": EXPIRES,
    "unit/client/producer/test_producer.py::"
    "test_a_silent_broker_is_abandoned_after_the_request_timeout_and_retried": EXPIRES,
    "unit/client/producer/test_producer.py::test_buffer_memory_blocks_and_then_raises": EXPIRES,
    "unit/client/producer/test_transactions.py::test_records_that_time_out_fail_the_transaction_for_good": EXPIRES,
    "unit/client/test_arguments.py::test_every_wrong_argument_of_a_client_is_named": EXPIRES,
    "unit/client/test_dropped.py::test_undeliverable_records_are_logged": EXPIRES,
    "unit/gateway/test_classic_group.py::test_a_member_that_is_silent_is_removed": NO_CLOCK,
    "unit/log/test_handles.py::test_a_file_that_is_just_opened_is_not_taken_away_when_its_segment_closes": PAUSE,
    "unit/log/test_in_place.py::SecondProbe": PAUSE,
    "unit/log/test_inflated_memory.py::until_waiting": PAUSE,
    "unit/security/test_https.py::trickle": PAUSE,
    "unit/security/test_https.py::test_an_answer_that_never_ends_ends": EXPIRES,
    "unit/test_java_patterns.py::test_a_pattern_that_never_ends_is_stopped": EXPIRES,
}
"""Tests with a shorter limit, and the reason why load does not make them fail."""


def test_no_limit_of_real_time_is_short() -> None:
    short = [
        (f"{path}::{limit.function}".removeprefix("tests/"), limit) for path, limit in limits_of_tests(ROOT, LEFT_OUT)
    ]
    refused = [
        f"{name}, line {limit.line}: {limit.text}" for name, limit in short if not name.startswith(tuple(EXCEPTIONS))
    ]
    assert not refused, "\n".join(refused)
    assert all(any(name.startswith(exception) for name, _ in short) for exception in EXCEPTIONS), "no longer needed"


@pytest.mark.parametrize(
    "source",
    [
        "future.result(5)",
        "future.exception(timeout=5)",
        "assert event.wait(20)",
        "thread.join(10)",
        "async def f():\n    await asyncio.wait_for(task, 10)",
        "async def f():\n    async with asyncio.timeout(10): pass",
        "subprocess.run(command, timeout=20)",
        "until(condition, within_s=5)",
        "LIMIT_S = 5\nfuture.result(LIMIT_S)",
        "def f(within_s=5): pass",
        "assert time.monotonic() - began < 5",
        "began = time.perf_counter()\nelapsed = time.perf_counter() - began\nassert elapsed <= 1.5",
        "assert 5 > time.monotonic() - began",
        "deadline = time.monotonic() + 10",
        "Admin(address, request_timeout_ms=10_000).list_topics()",
        "Producer(address, max_block_ms=1000)",
    ],
)
def test_a_short_limit(source: str) -> None:
    assert len(limits_in(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "future.result(30)",
        "future.result(0)",
        "assert not event.wait(0.1)",
        "while not done.wait(0.05): look()",
        "while time.monotonic() - began < 6: send()",
        "with pytest.raises(TimeoutError):\n    future.result(1)",
        "consumer.poll(timeout_ms=200)",
        "Admin(address, request_timeout_ms=60_000)",
        "found.get('t', 1)",
        "assert time.monotonic() - began >= 5",
    ],
)
def test_no_short_limit(source: str) -> None:
    assert limits_in(source) == []
