"""The budget of request memory: bounded, and never a deadlock."""

from __future__ import annotations

from sparklog.environment.memory_budget import SMALL_BYTES, MemoryBudget

KIB = 1024


def never() -> None:
    raise AssertionError("must not be woken")


def test_reservations_fit_until_the_limit() -> None:
    budget = MemoryBudget(100 * KIB)
    assert budget.reserve("a", 60 * KIB, never)
    assert budget.reserve("b", 40 * KIB, never)
    assert budget.used_bytes == 100 * KIB
    budget.release("a", 60 * KIB)
    assert budget.used_bytes == 40 * KIB


def test_one_owner_may_exceed_the_limit_to_guarantee_progress() -> None:
    budget = MemoryBudget(100 * KIB)
    woken: list[str] = []
    assert budget.reserve("a", 50 * KIB, never)
    assert budget.reserve("b", 50 * KIB, never)
    assert budget.reserve("a", 50 * KIB, never), "all memory is in half-read frames: the first may finish"
    assert budget.reserve("a", 50 * KIB, never)
    assert not budget.reserve("b", 50 * KIB, lambda: woken.append("b"))
    assert not budget.reserve("c", 50 * KIB, lambda: woken.append("c"))
    assert woken == []
    budget.release("a", 150 * KIB)
    assert woken == ["b", "c"]
    assert budget.waiting_count == 0


def test_small_reservations_are_never_held_up() -> None:
    budget = MemoryBudget(KIB)
    assert budget.reserve("big", 50 * KIB, never)
    assert budget.reserve("small", SMALL_BYTES, never)
    assert not budget.reserve("large", SMALL_BYTES + 1, lambda: None)


def test_a_cancelled_waiter_is_not_woken() -> None:
    budget = MemoryBudget(KIB)
    assert budget.reserve("a", 50 * KIB, never)
    assert not budget.reserve("b", 50 * KIB, never)
    budget.forget("b")
    budget.release("a", 50 * KIB)
    assert budget.used_bytes == 0


def test_a_woken_waiter_that_does_not_fit_keeps_its_place() -> None:
    budget = MemoryBudget(100 * KIB)
    woken: list[str] = []

    def retry(name: str) -> None:
        woken.append(name)
        budget.reserve(name, 90 * KIB, lambda: retry(name))

    assert budget.reserve("x", 60 * KIB, never)
    assert budget.reserve("a", 60 * KIB, never)  # exempt
    for name in ("b", "c", "d"):
        assert not budget.reserve(name, 90 * KIB, lambda name=name: retry(name))  # type: ignore[misc]
    budget.release("a", 60 * KIB)
    assert woken == ["b", "c", "d"]  # b is exempt now, the others wait on
    assert budget.waiting_count == 2
    budget.release("b", 90 * KIB)
    assert woken == ["b", "c", "d", "c", "d"]
