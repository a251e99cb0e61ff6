"""Placement of replicas, and plans that move them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from sparklog.replication.controller.moves import plan_moves
from sparklog.replication.controller.placement import check_assignment, place
from sparklog.types import TopicPartition
from tests.support.cases import for_each


def test_round_robin_with_growing_distance() -> None:
    placed = place(dict.fromkeys(range(5)), 10, 3, start=0, shift=0)
    assert placed == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_racks_alternate() -> None:
    racks = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
    placed = place(racks, 6, 2, start=0, shift=0)
    assert [p[0] for p in placed] == [0, 3, 1, 4, 2, 5]
    assert all(racks[a] != racks[b] for a, b in placed)


def test_one_broker_without_a_rack_and_racks_do_not_count() -> None:
    assert place({0: "a", 1: None, 2: "a"}, 1, 3, start=0, shift=0) == [(0, 1, 2)]


@given(
    racks=st.dictionaries(st.integers(0, 20), st.sampled_from("abc"), min_size=1, max_size=9),
    partitions=st.integers(1, 40),
    start=st.integers(0, 100),
    shift=st.integers(0, 100),
    data=st.data(),
)
def test_replicas_differ_racks_are_used_evenly_and_leaders_too(
    racks: dict[int, str], partitions: int, start: int, shift: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(dict(racks), partitions, factor, start=start, shift=shift)
    leaders = Counter(p[0] for p in placed)
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        assert len({racks[r] for r in replicas}) == min(factor, len(set(racks.values())))
    assert max(leaders.values()) - min(leaders.get(b, 0) for b in racks) <= 1


@given(first=st.integers(0, 20), added=st.integers(1, 20))
def test_partitions_added_later_go_where_they_would_have_gone(first: int, added: int) -> None:
    brokers = dict.fromkeys(range(4))
    whole = place(brokers, first + added, 2, start=3, shift=1)
    assert place(brokers, added, 2, start=3, shift=1, first_partition=first) == whole[first:]


@pytest.mark.parametrize("factor", [0, 4])
def test_more_replicas_than_brokers_are_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match="with 3 brokers"):
        place(dict.fromkeys(range(3)), 1, factor, start=0, shift=0)


@for_each("assignment", [[[1, 1]], [[]], [[1, 9]], [[1, 2], [1]]])
def test_assignments_that_cannot_be_had(assignment: list[list[int]]) -> None:
    with pytest.raises(InvalidReplicaAssignmentError):
        check_assignment(assignment, {1, 2, 3})


# Plans of where replicas are to go


NO_RACKS: dict[int, str | None] = dict.fromkeys((1, 2, 3))


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def test_an_even_placement_stays() -> None:
    current = {tp(0): (1, 2), tp(1): (2, 3), tp(2): (3, 1)}
    assert plan_moves(current, NO_RACKS) == {}


def test_a_drained_broker_is_replaced_in_its_place_and_no_other_replica_moves() -> None:
    current = {tp(0): (4, 1), tp(1): (2, 3), tp(2): (1, 4), tp(3): (1, 2)}
    assert plan_moves(current, NO_RACKS, balanced=False) == {tp(0): (3, 1), tp(2): (1, 2)}


def test_a_new_broker_gets_its_share() -> None:
    current = {tp(i): (1, 2) for i in range(6)}
    moved = plan_moves(current, NO_RACKS)
    after = {**current, **moved}
    assert Counter(r for replicas in after.values() for r in replicas) == {1: 4, 2: 4, 3: 4}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2}
    assert len([1 for t, replicas in moved.items() if set(replicas) != set(current[t])]) == 4  # no more than needed


def test_a_replica_goes_to_a_rack_that_has_none() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "b"}
    assert plan_moves({tp(0): (1, 9)}, racks, balanced=False) == {tp(0): (1, 2)}


def test_more_and_fewer_replicas() -> None:
    assert plan_moves({tp(0): (1, 2)}, NO_RACKS, replication_factor=3, balanced=False) == {tp(0): (1, 2, 3)}
    assert plan_moves({tp(0): (1, 2, 3)}, NO_RACKS, replication_factor=1, balanced=False) == {tp(0): (1,)}


def test_too_few_brokers() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="t-0 has 3 replicas, but only 2 brokers"):
        plan_moves({tp(0): (1, 2, 3)}, {1: None, 2: None})


@given(
    data=st.data(),
    brokers=st.integers(1, 6),
    allowed=st.sets(st.integers(1, 8), min_size=1, max_size=8),
    count=st.integers(0, 12),
)
def test_any_plan_is_one_that_can_be_had(data: st.DataObject, brokers: int, allowed: set[int], count: int) -> None:
    factor = data.draw(st.integers(1, min(brokers, len(allowed))))
    racks = {b: data.draw(st.sampled_from("ab")) for b in sorted(allowed)}
    current = {tp(i): tuple(data.draw(st.permutations(range(1, brokers + 1))))[:factor] for i in range(count)}
    moved = plan_moves(current, racks)
    after = {**current, **moved}
    load = Counter({**dict.fromkeys(racks, 0), **Counter(r for replicas in after.values() for r in replicas)})
    for replicas in after.values():
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= allowed
    if len(set(racks.values())) == 1:
        assert max(load.values()) - min(load.values()) <= 1
    assert plan_moves(after, racks, balanced=False) == {}
