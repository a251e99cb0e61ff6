"""The kit's simulation: one seed is one run; programs with planted errors are caught, and correct ones pass."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import InvalidTxnStateError, UnknownTopicOrPartitionError
from sparklog.testing import Sim, SimClients, _sim_programs, eventually, exactly_once
from sparklog.testing._sim_clients import EPOCH_MS
from tests.support.cases import for_each

RECORDS = 20
EVENTS_OF_AN_IDLE_HOUR = 30_000
"""Without rest, three brokers have 500,000 events in an hour."""
SEEDS_CORRECT = range(6)
SEEDS_PLANTED = range(20, 220)
"""Seeds among which a planted error has to be found. The first runs that find it take seconds."""


def producer(clients: SimClients) -> None:
    """Send the numbers one by one; a life that follows a kill sends all of them again."""
    with clients.producer() as producer:
        for n in range(RECORDS):
            producer.send("in", b"%d" % n, key=b"%d" % n)
            clients.sleep(0.5)


class Worker:
    """A program of a group that does work for each record; `work` is the world outside."""

    def __init__(self, poll: Callable[[Worker, Any], None]) -> None:
        self.work: dict[int, int] = {}
        """Number of times that each number was worked on."""
        self._poll = poll

    def do(self, value: bytes | None) -> None:
        """Do the work of one record."""
        number = int(value or b"")
        self.work[number] = self.work.get(number, 0) + 1

    def is_done(self) -> bool:
        return len(self.work) == RECORDS

    def __call__(self, clients: SimClients) -> None:
        with clients.consumer("in", group_id="workers") as consumer:
            while not self.is_done():
                self._poll(self, consumer)
                clients.sleep(0.05)


def commits_after_the_work(worker: Worker, consumer: Any) -> None:
    for record in consumer.poll():
        worker.do(record.value)
    consumer.commit()


def commits_before_the_work(worker: Worker, consumer: Any) -> None:
    records = consumer.poll()
    consumer.commit()
    consumer._clients.sleep(0.5)  # the work takes time
    for record in records:
        worker.do(record.value)


def run(sim: Sim, worker: Worker, seed: int, members: int = 2) -> None:
    sim.run([producer, *[worker] * members], seed=seed, topics={"in": 2}, until=worker.is_done)


@pytest.fixture
def sim() -> Any:
    simulated = Sim()
    yield simulated
    simulated.close()


def test_one_seed_is_one_run(sim: Sim) -> None:
    traces = []
    for seed in (1, 1, 2):
        run(sim, Worker(commits_after_the_work), seed)
        traces.append((sim.trace, sim.now_s, tuple(sim.events)))
    assert traces[0] == traces[1] != traces[2]


@for_each("seed", SEEDS_CORRECT)
def test_a_correct_group_does_all_work(seed: int) -> None:
    sim = Sim()
    run(sim, Worker(commits_after_the_work), seed)
    sim.close()


def test_a_commit_waits_for_the_members_new_epoch(sim: Sim) -> None:
    """With this seed the group gives a member a newer epoch while the member commits."""
    served: list[int] = []

    def serve(clients: SimClients) -> None:
        while len(served) < 2 * RECORDS:
            end_ms = clients.now_ms() + clients.random.randrange(1_000, 15_000)

            def commit(_: object) -> None:
                consumer.commit()

            with clients.consumer("in", group_id="servers", on_revoked=commit) as consumer:
                while clients.now_ms() < end_ms:
                    served.extend(int(record.value or b"") for record in consumer.poll(100))
                consumer.commit()

    def send(clients: SimClients) -> None:
        with clients.producer() as producer:
            for n in range(2 * RECORDS):
                producer.send("in", b"%d" % n)
                clients.sleep(0.5)

    sim.run([send, serve, serve], seed=94, brokers=1, topics={"in": 2}, faults=())
    assert sorted(served) == list(range(2 * RECORDS))


def is_detected(run_seed: Callable[[Sim, int], None]) -> bool:
    """Return True if a run of one of the seeds fails."""
    sim = Sim()
    for seed in SEEDS_PLANTED:
        try:
            run_seed(sim, seed)
        except AssertionError:
            sim.close()
            return True
    sim.close()
    return False


def test_offsets_committed_before_the_work_are_detected() -> None:
    assert is_detected(lambda sim, seed: run(sim, Worker(commits_before_the_work), seed))


def test_faults_by_hand_and_virtual_time(sim: Sim) -> None:
    def ping(clients: SimClients) -> str:
        clients.sleep(10)
        clients.producer().send("in", b"ping").result()
        return "done"

    sim.run(ping, seed=3, topics={"in": 1}, faults=(), seconds=0, within="1 s")
    assert sim.results == [None]
    sim.crash(2).cut(1, 3)
    sim.advance("9 s").heal()
    eventually(lambda: sim.results == ["done"], within="1 minute", sim=sim)
    assert [row["value"] for row in sim.rows("in")] == [b"ping"]
    before_s = sim.now_s
    sim.advance("1 minute")
    assert sim.now_s == pytest.approx(before_s + 60)


def send_one(clients: SimClients) -> None:
    """Send a record, then sleep for ten days."""
    clients.producer().send("in", b"first").result()
    clients.sleep(10 * 86_400)


def test_idle_time_takes_few_events_and_ages_records(sim: Sim) -> None:
    """The two brokers that remain after a crash rest, too. Retention deletes by the time that was skipped."""
    traces = []
    for _ in range(2):
        sim.run(send_one, seed=4, topics={"in": 1}, faults=(), seconds=0, within="10 s")
        sim.crash(2)
        before_s, before = sim.now_s, sim._world.turns
        sim.advance("1 hour")
        assert sim.now_s == pytest.approx(before_s + 3600)
        assert sim._world.turns - before < EVENTS_OF_AN_IDLE_HOUR
        sim.heal()
        sim.advance("6 days")
        assert [row["value"] for row in sim.rows("in")] == [b"first"]
        traces.append(sim.trace)
    assert traces[0] == traces[1]
    sim.advance("2 days")
    assert sim.rows("in") == []


def test_a_member_that_is_killed_is_missed_in_time(sim: Sim) -> None:
    """Time is not skipped while a group has members: a session ends by its own timeout."""
    taken: list[float] = []

    def late(clients: SimClients) -> None:
        clients.sleep(20)
        with clients.consumer("in", group_id="workers") as consumer:
            while len(consumer.assignment()) < 2:
                consumer.poll()
        taken.append(sim.now_s)

    def forgetful(clients: SimClients) -> None:
        clients.consumer("in", group_id="workers", session_timeout_ms=60_000).poll()
        clients.sleep(1)
        raise UnknownTopicOrPartitionError("the program ends without leaving the group")

    def once(clients: SimClients) -> None:
        if clients.now_ms() - EPOCH_MS < 15_000:
            forgetful(clients)

    sim.run([once, late], seed=1, brokers=1, topics={"in": 2}, faults=(), within="1 hour")
    assert 55 < taken[0] < 80


def test_the_error_of_a_program_is_raised(sim: Sim) -> None:
    def broken(clients: SimClients) -> None:
        clients.sleep(1)
        raise LookupError("a defect")

    with pytest.raises(LookupError, match="a defect"):
        sim.run(broken, seed=1, brokers=1)
    with pytest.raises(ValueError, match="a list of kill, pause"):
        sim.run(broken, faults=["earthquake"])


def test_a_program_that_fails_again_and_again_fails_the_run(sim: Sim) -> None:
    def program(clients: SimClients) -> None:
        clients.producer().begin_transaction()

    with pytest.raises(InvalidTxnStateError, match="has no transactions") as raised:
        sim.run(program, brokers=1)
    assert "program-1 has ended 10 times with this error" in raised.value.__notes__


def test_a_program_that_fails_for_a_time_goes_on(sim: Sim) -> None:
    lives: list[int] = []

    def program(clients: SimClients) -> str:
        lives.append(len(lives))
        if len(lives) < 30:
            raise UnknownTopicOrPartitionError("the same text" if len(lives) < 9 else f"life {len(lives)}")
        return "done"

    sim.run(program, brokers=1, faults=(), seconds=0)
    assert sim.results == ["done"]


def test_a_program_that_sleeps_in_real_time_is_named(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sim_programs, "REAL_TIME_S", 0.05)
    end = threading.Event()

    def program(clients: SimClients) -> None:
        end.wait()

    with pytest.raises(RuntimeError, match=r"(?s)waits with clients\.sleep.*end\.wait\(\)"):
        sim.run(program, brokers=1)
    end.set()
    sim.close()


def test_a_program_that_never_waits_is_ended(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sim_programs, "REAL_TIME_S", 0.05)
    threads: list[threading.Thread] = []

    def program(clients: SimClients) -> None:
        threads.append(threading.current_thread())
        while True:
            pass

    with pytest.raises(RuntimeError, match=r"waits with clients\.sleep"):
        sim.run(program, brokers=1)
    threads[0].join(60)
    assert not threads[0].is_alive(), "the thread takes the processor's time from later tests"


def test_a_killed_program_that_handles_each_error_ends(sim: Sim) -> None:
    def program(clients: SimClients) -> None:
        while True:
            with contextlib.suppress(BaseException):
                clients.sleep(1)

    sim.run(program, brokers=1, faults=(), seconds=0, within="1 s").kill().advance("2 s")
    assert sim.results == [None]
    sim.close()


def test_clients_are_for_their_own_program(sim: Sim) -> None:
    kept: list[SimClients] = []
    sim.run(kept.append, brokers=1, faults=())
    for work in (lambda: kept[0].sleep(1), lambda: kept[0].producer().send("in", b"late")):
        with pytest.raises(RuntimeError, match="for its own thread"):
            work()


@for_each("content", [5, "text"])
def test_records_of_a_simulation_are_bytes(content: Any) -> None:
    sim = Sim()

    def program(clients: SimClients) -> None:
        for record in ({"value": content}, {"value": b"", "key": content}):
            with pytest.raises(TypeError, match="bytes are needed"):
                clients.producer().send("in", **record)

    sim.run(program, brokers=1, topics={"in": 1}, faults=())
    sim.close()


def test_one_broker_is_a_simulation_too(sim: Sim) -> None:
    worker = Worker(commits_after_the_work)
    sim.run([producer, worker], seed=5, brokers=1, topics={"in": 2}, until=worker.is_done)
    exactly_once([{"n": n} for n in range(RECORDS)], [{"n": n} for n in worker.work], key="n")
