"""The next fetch leaves before the last answer is decoded; after any event, no record is lost or comes twice."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.client.consumer.consumer import Consumer
from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.apis import Api
from sparklog.types import TopicPartition
from tests.support.clients import TP0, drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, FakeBroker

TP1 = TopicPartition("events", 1)

pytestmark = pytest.mark.usefixtures("local_read")


def values(records: list[Any], partition: int) -> list[int]:
    return [int(r.value) for r in records if r.partition == partition]


def test_it_goes_out_before_anything_is_decoded(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake, 3)
    with Consumer(fake.address, max_partition_fetch_bytes=1024, local_read="off") as consumer:
        seen: list[int] = []
        consumer.assign([])
        take_part = consumer._fetcher.first._take_part

        def look(part: Any) -> None:
            if part.data.size:
                ahead = consumer._fetcher.first.in_flight
                seen.append(-1 if ahead is None else ahead.requested[0][1].fetch_offset)
            take_part(part)

        monkeypatch.setattr(consumer._fetcher.first, "_take_part", look)
        consumer.assign([TP0])
        consumer.seek(TP0, 0)
        assert values(drain(consumer, 30), 0) == list(range(30))
    assert seen[-3:] == [10, 20, 30]  # `assign` may have read something before `seek`


def test_undecodable_batches_are_fetched_again(fake4: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake4, 4, partition=0)
    fill(fake4, 4, partition=1)
    with Consumer(fake4.address) as consumer:
        failures = [3, 5]
        calls = 0
        take_part = consumer._fetcher.first._take_part

        def fail_at_times(part: Any) -> None:
            nonlocal calls
            calls += 1
            if calls in failures:
                raise BrokerNotAvailableError("the schema cannot be asked for")
            take_part(part)

        monkeypatch.setattr(consumer._fetcher.first, "_take_part", fail_at_times)
        consumer.assign([TP0, TP1])
        found = drain(consumer, 80, max_records=1000)
        fill(fake4, 1, partition=0)
        found += drain(consumer, 10, max_records=1000)
    assert values(found, 0) == list(range(50))
    assert values(found, 1) == list(range(40))
    assert calls > max(failures)


def test_an_answer_that_never_comes_is_requested_again(fake: FakeBroker) -> None:
    fill(fake, 6)
    fetches = 0

    def drop_some(api: Api, _: Any) -> Any:
        nonlocal fetches
        fetches += api is Api.FETCH
        return DROP if api is Api.FETCH and fetches in (2, 4) else None

    fake.hook = drop_some
    with Consumer(fake.address, max_partition_fetch_bytes=1024) as consumer:
        consumer.assign([TP0])
        assert values(drain(consumer, 60), 0) == list(range(60))


def test_no_fetch_goes_ahead_of_a_full_prefetch(fake: FakeBroker) -> None:
    fill(fake, 10)
    size = len(fake.logs[("events", 0)][0])
    with Consumer(fake.address, max_partition_fetch_bytes=1024, prefetch_bytes=size) as consumer:
        consumer.assign([TP0])
        until(lambda: consumer._fetcher.ready.size_bytes >= size)
        assert values(drain(consumer, 100), 0) == list(range(100))
        assert consumer._fetcher.ready.size_bytes <= 2 * size


def test_a_partition_that_is_resumed_is_not_forgotten(fake4: FakeBroker) -> None:
    fill(fake4, 20, partition=0)
    fill(fake4, 2, partition=1)
    with Consumer(fake4.address, max_partition_fetch_bytes=1024) as consumer:
        consumer.assign([TP0, TP1])
        consumer.pause(TP1)
        found = drain(consumer, 50, max_records=10)
        consumer.resume(TP1)
        found += drain(consumer, 220 - len(found))
    assert values(found, 0) == list(range(200))
    assert values(found, 1) == list(range(20))
