"""A scrape's thread lets the event loop have its turn."""

from __future__ import annotations

from sparklog_broker.metrics.slices import ITEMS_PER_LOOK, PAUSE_S, SLICE_S, Slices


class Machine:
    """A clock, on which each item takes `item_s`, and sleeps are noted."""

    def __init__(self, item_s: float) -> None:
        self.now_s = 0.0
        self.item_s = item_s
        self.rests: list[float] = []

    def rest(self, seconds: float) -> None:
        self.rests.append(self.now_s)
        self.now_s += seconds

    def work(self, count: int) -> Slices:
        slices = Slices(lambda: self.now_s, self.rest)
        assert list(slices.each(self.items(count))) == list(range(count))
        return slices

    def items(self, count: int) -> list[int]:
        return _Items(self, count)


class _Items(list[int]):
    def __init__(self, machine: Machine, count: int) -> None:
        super().__init__(range(count))
        self._machine = machine

    def __iter__(self):  # type: ignore[no-untyped-def]
        for item in super().__iter__():
            self._machine.now_s += self._machine.item_s
            yield item


def test_little_work_is_one_slice() -> None:
    machine = Machine(SLICE_S / 1000)
    assert machine.work(500).count == 1
    assert machine.rests == []


def test_no_slice_is_much_longer_than_it_may() -> None:
    item_s = SLICE_S / 20
    machine = Machine(item_s)
    slices = machine.work(2_000)
    assert slices.count == len(machine.rests) + 1 > 50
    ends = [0.0, *(rest + PAUSE_S for rest in machine.rests)]
    longest_s = max(rest - end for rest, end in zip(machine.rests, ends, strict=False))
    assert longest_s <= SLICE_S + (ITEMS_PER_LOOK + 1) * item_s


def test_slow_items_are_slices_of_their_own() -> None:
    machine = Machine(SLICE_S * 2)
    assert machine.work(10 * ITEMS_PER_LOOK).count == 11
