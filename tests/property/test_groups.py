"""Consumer groups under everything that can go wrong: one owner per partition, fenced zombies, nothing lost by a
restart."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from sparklog.replication.assignors import Subscriber, assign_range, assign_uniform
from sparklog.replication.group_membership import Safeguards
from sparklog.types import TopicPartition
from tests.property.groups_model import PARTITIONS, TOPICS, Client, World
from tests.support.cases import for_each

some_topics = st.lists(st.sampled_from([*TOPICS, "missing"]), min_size=0, max_size=3, unique=True)
index = st.integers(0, 1000)


class Groups(RuleBasedStateMachine):
    """Rules pick by an index, modulo the number of candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def client(self, i: int) -> Client:
        alive = [c for c in self.world.clients if not c.gone]
        return alive[i % len(alive)]

    def any_alive(self) -> bool:
        return any(not c.gone for c in self.world.clients)

    @rule(topics=some_topics, instance=st.sampled_from([None, None, "s1", "s2"]))
    def join(self, topics: list[str], instance: str | None) -> None:
        if len([c for c in self.world.clients if not c.gone]) < 4:
            taken = instance is not None and any(
                c.membership.config.instance_id == instance and not c.gone for c in self.world.clients
            )
            self.world.join(topics or ["a"], None if taken else instance)
            self.exchange(len(self.world.clients) - 1)

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def exchange(self, i: int) -> None:
        """A heartbeat as it mostly is: answered."""
        client = self.client(i)
        self.world.heartbeat(client)
        self.world.deliver(len(self.world.requests) - 1, keep=False)
        self.world.answer(len(self.world.answers) - 1)
        self.world.poll(client)

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def heartbeat(self, i: int) -> None:
        self.world.heartbeat(self.client(i))

    @precondition(lambda self: self.world.requests)
    @rule(i=index, keep=st.booleans())
    def deliver(self, i: int, keep: bool) -> None:
        self.world.deliver(i % len(self.world.requests), keep=keep)

    @precondition(lambda self: self.world.answers)
    @rule(i=index)
    def answer(self, i: int) -> None:
        self.world.answer(i % len(self.world.answers))

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def poll(self, i: int) -> None:
        self.world.poll(self.client(i))
        self.world.check_owners()

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def let_go(self, i: int) -> None:
        self.client(i).let_go()

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def kill(self, i: int) -> None:
        self.world.kill(self.client(i))

    @precondition(lambda self: self.any_alive())
    @rule(i=index)
    def leave(self, i: int) -> None:
        self.world.leave(self.client(i))

    @precondition(lambda self: self.any_alive())
    @rule(i=index, topics=some_topics)
    def subscribe(self, i: int, topics: list[str]) -> None:
        self.world.subscribe(self.client(i), topics)

    @precondition(lambda self: any(c.had and not c.gone for c in self.world.clients))
    @rule(i=index, j=index, processed=st.integers(0, 5), delivered=st.booleans())
    def commit(self, i: int, j: int, processed: int, delivered: bool) -> None:
        """Also, at once, of a partition that has been taken away: a thread that has not noticed."""
        having = [c for c in self.world.clients if c.had and not c.gone]
        client = having[i % len(having)]
        had = sorted(client.had)
        tp = had[j % len(had)]
        late = tp not in client.held
        if late and self.world.owner(tp) == client.member_id:
            return  # it has the partition again and is about to hear of it
        self.world.send_commit(client, tp, processed)
        if delivered or late:
            self.world.deliver_commit(len(self.world.commits) - 1, keep=False)

    @precondition(lambda self: self.world.commits)
    @rule(i=index, keep=st.booleans())
    def deliver_commit(self, i: int, keep: bool) -> None:
        self.world.deliver_commit(i % len(self.world.commits), keep=keep)

    @rule(ms=st.sampled_from([100, 600, 1100, 3500]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(ms=st.sampled_from([0, 500, 3000]))
    def reserve(self, ms: int) -> None:
        self.world.reserve(ms)

    @rule(lost=st.integers(0, 4))
    def crash(self, lost: int) -> None:
        self.world.crash(lost)

    @rule(partitions_of_a=st.integers(0, 4), new=st.booleans())
    def change_topics(self, partitions_of_a: int, new: bool) -> None:
        topics = {"b": TOPICS["b"]}
        if partitions_of_a:
            topics["a"] = ("id-new" if new else "id-a", partitions_of_a)
        self.world.change_topics(topics)

    @rule(producer=st.integers(1, 2), tp=st.sampled_from(PARTITIONS), offset=st.integers(0, 50))
    def commit_in_transaction(self, producer: int, tp: TopicPartition, offset: int) -> None:
        self.world.commit_in_transaction(producer, tp, offset)

    @rule(tp=st.sampled_from(PARTITIONS), offset=st.integers(0, 50))
    def commit_alone(self, tp: TopicPartition, offset: int) -> None:
        self.world.commit_alone(tp, offset)

    @rule(producer=st.integers(1, 2), committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        self.world.end_transaction(producer, committed=committed)

    def teardown(self) -> None:
        self.world.check_restart()
        self.world.settle()


subscriptions = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(7)]), st.sets(st.sampled_from("abcx"), max_size=4), min_size=1
)
counts = st.fixed_dictionaries({t: st.integers(0, 9) for t in "abc"})


def members_of(wanted: dict[str, set[str]], before: dict[str, frozenset[TopicPartition]]) -> dict[str, Subscriber]:
    return {m: Subscriber(m, topics, before.get(m, frozenset())) for m, topics in wanted.items()}


@given(first=subscriptions, second=subscriptions, counts_first=counts, counts_second=counts)
def test_assignors_give_every_partition_to_one_subscriber(
    first: dict[str, set[str]], second: dict[str, set[str]], counts_first: dict[str, int], counts_second: dict[str, int]
) -> None:
    for assign in (assign_range, assign_uniform):
        before = assign(members_of(first, {}), counts_first)
        made = assign(members_of(second, before), counts_second)
        assert set(made) == set(second)
        given_out = [tp for partitions in made.values() for tp in partitions]
        wanted = [TopicPartition(t, p) for t, n in counts_second.items() for p in range(n)]
        assert sorted(given_out) == sorted(tp for tp in wanted if any(tp.topic in t for t in second.values()))
        assert all(tp.topic in second[m] for m, partitions in made.items() for tp in partitions)
        assert made == assign(members_of(second, before), counts_second), "it depends on nothing else"


@given(wanted=subscriptions, counts=counts)
def test_uniform_is_balanced_and_stays(wanted: dict[str, set[str]], counts: dict[str, int]) -> None:
    made = assign_uniform(members_of(wanted, {}), counts)
    for member, partitions in made.items():
        for tp in partitions:
            least = min(len(made[m]) for m, topics in wanted.items() if tp.topic in topics)
            assert len(partitions) <= least + 1, f"{tp} of {member} could move"
    assert assign_uniform(members_of(wanted, made), counts) == made, "nothing has changed, so nothing moves"
    joined = wanted | {"new": wanted[min(wanted)]}
    if len({frozenset(t) for t in joined.values()}) == 1:
        after = assign_uniform(members_of(joined, made), counts)
        moved = sum(len(made[m] - after[m]) for m in wanted)
        assert moved == len(after["new"]), "only what the new member gets has moved"


def run(**options: Any) -> None:
    # the same on every run, whatever profile is loaded
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Groups, settings=settings(deadline=None, database=None, suppress_health_check=health, **options)
    )


def test_one_owner_fenced_zombies_and_no_loss_by_a_restart() -> None:
    run(max_examples=60, stateful_step_count=40, derandomize=True)


@pytest.mark.torture
def test_one_owner_fenced_zombies_and_no_loss_by_a_restart_at_length() -> None:
    run(max_examples=3000, stateful_step_count=80)


def walk(seed: int, safeguards: Safeguards, steps: int = 60) -> None:
    """The same rules at random, without hypothesis' bookkeeping: a hundred times as many in the same time."""
    rng = random.Random(seed)
    machine = Groups.__new__(Groups)
    machine.world = world = World(safeguards)
    transactions, calm = rng.random() < 0.3, rng.random() < 0.5
    for _ in range(steps):
        i, j, yes = rng.randrange(1000), rng.randrange(1000), rng.random() < 0.5
        alive, having = machine.any_alive(), any(c.had and not c.gone for c in world.clients)
        tp, offset, producer = rng.choice(PARTITIONS), rng.randrange(50), rng.choice([1, 2])
        if transactions:
            step = rng.choice(["commit_in_transaction", "commit_alone", "end_transaction", "crash"])
            if step == "commit_in_transaction":
                machine.commit_in_transaction(producer, tp, offset)
            elif step == "commit_alone":
                machine.commit_alone(tp, offset)
            elif step == "end_transaction":
                machine.end_transaction(producer, yes)
            else:
                machine.crash(rng.randrange(4))
            continue
        weights = {
            "join": 4,
            "exchange": 12 * alive * calm,
            "heartbeat": 8 * alive,
            "deliver": (12 if calm else 30) * bool(world.requests),
            "answer": (12 if calm else 60) * bool(world.answers),
            "poll": 6 * alive,
            "let_go": 5 * alive,
            "commit": 8 * having,
            "deliver_commit": 6 * bool(world.commits),
            "pass_time": 3,
            "kill": 0.5 * alive,
            "leave": alive,
            "crash": 0.5,
            "change_topics": 0.5,
            "reserve": 0.3,
        }
        step = rng.choices(list(weights), list(weights.values()))[0]
        if step == "join":
            machine.join(rng.choice([["a"], ["b"], ["a", "b"]]), rng.choice([None, None, "s1"]))
        elif step in ("deliver", "deliver_commit"):
            getattr(machine, step)(i, yes)
        elif step == "commit":
            machine.commit(i, j, rng.randrange(4), yes)
        elif step == "reserve":
            machine.reserve(rng.choice([0, 500, 3000]))
        elif step == "pass_time":
            machine.pass_time(rng.choice([100, 600, 1100]))
        elif step == "crash":
            machine.crash(rng.randrange(4))
        elif step == "change_topics":
            machine.change_topics(rng.randrange(5), yes)
        else:
            getattr(machine, step)(i)
    machine.teardown()


def test_an_assignment_that_is_taken_back_before_it_was_taken() -> None:
    """Nothing has to be let go then, but the group must hear of it; found by a campaign, rare in the walks."""
    world = World()
    for _ in range(2):
        world.join(["a", "b"])
    first, second = world.clients
    for client in (first, second, first):
        world.heartbeat(client)
        world.deliver(0, keep=False)
        world.answer(0)
    world.settle()


def test_an_offset_in_a_transaction_goes_with_its_topic() -> None:
    """Found by a campaign: the transaction's end committed an offset of a topic that had been deleted meanwhile, which
    a restart then removed."""
    tp = PARTITIONS[0]
    world = World()
    world.commit_in_transaction(1, tp, 3)
    world.change_topics({})
    world.end_transaction(1, committed=True)
    world.check_restart()
    assert world.coordinator.offsets.total == 0


def test_many_random_walks() -> None:
    for seed in range(300):
        walk(seed, Safeguards())


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_very_many_random_walks() -> None:
    for seed in range(20_000):
        walk(seed, Safeguards(), steps=150)


@for_each("name", [f.name for f in fields(Safeguards)])
def test_without_one_safeguard_a_walk_fails(name: str) -> None:
    without = replace(Safeguards(), **{name: False})
    with pytest.raises(AssertionError, match=r"is read by|which .* reads|goes back|the log says|there are"):
        for seed in range(5_000):
            walk(seed, without)
