"""Which shards of an internal topic work on a broker."""

from __future__ import annotations

from typing import Any, cast

from sparklog_broker.coordinators.led_shards import LedShards


class _Shard:
    """A shard that records its calls."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[str] = []

    def load(self) -> None:
        self.told.append("load")

    def park(self) -> None:
        self.told.append("park")


def shards() -> LedShards[Any]:
    return LedShards(lambda number: cast(Any, _Shard(number)))


def numbers(found: list[Any]) -> list[int]:
    return [shard.number for shard in found]


def test_of_several_brokers_each_leads_its_assigned_shards() -> None:
    made = shards()
    made.start(3)
    assert made.led == []
    made.follow(1, leads=True)
    made.follow(1, leads=True)  # nothing new
    assert numbers(made.led) == [1]
    made.follow(1, leads=False)
    assert not made.leads(1)
    assert [shard.told for shard in made.all] == [[], ["load", "park"], []]


def test_shards_led_before_the_start_are_loaded_beyond_the_configured_number() -> None:
    made = shards()
    made.follow(4, leads=True)
    assert made.all == []
    made.start(2)
    assert numbers(made.all) == [0, 1, 2, 3, 4]
    assert numbers(made.led) == [4]
    assert made.led[0].told == []  # who starts them loads them


def test_a_partition_beyond_the_configured_number_that_comes_later_has_a_shard() -> None:
    made = shards()
    made.start(1)
    made.follow(2, leads=True)
    assert numbers(made.all) == [0, 1, 2]
    assert [shard.told for shard in made.all] == [[], [], ["load"]]
