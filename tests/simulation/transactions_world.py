"""A small world around one transaction coordinator: partitions, clients, a network and crashes, and what must hold.

`World.step` does one thing that `choose` picks: a client asks, a message is delivered (again, late), an append to the state
topic becomes durable, a marker is written, time passes, the coordinator crashes and is made anew from what is durable. The
partitions use the log's own rules about producers. Whenever something is answered or written, what must hold
(`transactions_promises.py`) is checked; `settle` brings everything to rest and checks that nothing stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from sparklog.errors import (
    SparklogError,
    TransactionAbortedError,
)
from sparklog.log.producers import Guard
from sparklog.replication.transactions import (
    AddPartitions,
    Answer,
    Coordinator,
    Effects,
    End,
    EndShared,
    Identity,
    IdReserve,
    InitProducer,
    Join,
    Joined,
    Marker,
    Refuse,
    Request,
    Safeguards,
    WriteMarkers,
)
from sparklog.types import TopicPartition, shared_transactional_id
from tests.simulation.transactions_actors import Client, Driver, Partition, Plain, Sent, Task, check
from tests.simulation.transactions_promises import Promises

TIMEOUT_MS = 4_000
NETWORK_MAX = 12


class World:
    """See the module."""

    def __init__(
        self, choose: Callable[[int], int], safeguards: Safeguards | None = None, *, durable_first: bool = True
    ) -> None:
        """`durable_first` False: a broker that answers, and writes markers, before the records are durable."""
        self.choose = choose
        self.durable_first = durable_first
        self.safeguards = safeguards if safeguards is not None else Safeguards()
        self.now_ms = 0
        self.counter = 0
        self.partitions = {TopicPartition("t", n): Partition() for n in range(3)}
        self.durable: list[list[tuple[bytes, bytes | None]]] = []
        self.pending: list[Effects] = []
        self.markers: list[tuple[str, Marker]] = []
        self.network: list[tuple[Hashable, Sent]] = []
        self.sent: dict[Hashable, Sent] = {}
        self.appends: list[Callable[[], None]] = []
        self.clients: dict[str, Plain] = {}
        self.old_clients: list[Plain] = []
        self.drivers: list[Driver] = []
        self.promises = Promises(self.partitions, self.drivers)
        self.reload()

    # -- the coordinator

    def fresh(self) -> int:
        self.counter += 1
        return self.counter

    def reload(self) -> None:
        self.ids = IdReserve()
        self.coordinator = Coordinator(self.ids, safeguards=self.safeguards)
        for record in (r for batch in self.durable for r in batch):
            self.coordinator.replay(*record)
        self.fill()
        self.apply(self.coordinator.loaded(self.now_ms))

    def fill(self) -> None:
        while len(self.ids) < 20:
            self.ids.add(self.fresh())

    def crash(self) -> None:
        """The first ones of what was being appended are in the log, though nobody has been told."""
        kept = self.choose(len(self.pending) + 1)
        self.durable += [e.records for e in self.pending[:kept]]
        self.pending.clear()
        self.markers.clear()
        if self.choose(3) == 0:
            self.compact()
        self.sent = {}
        self.reload()

    def compact(self) -> None:
        last = {key: value for batch in self.durable for key, value in batch}
        self.durable = [[(key, value)] for key, value in last.items() if value is not None or self.choose(2)]

    def apply(self, effects: Effects) -> None:
        if not self.durable_first:
            effects, done = Effects(effects.records), effects
            self.act(done)
        if effects.records or effects.actions:
            self.pending.append(effects)
        while self.pending and not self.pending[0].records:
            self.act(self.pending.pop(0))

    def append_done(self) -> None:
        effects = self.pending.pop(0)
        self.durable.append(effects.records)
        self.act(effects)
        while self.pending and not self.pending[0].records:
            self.act(self.pending.pop(0))

    def act(self, effects: Effects) -> None:
        for action in effects.actions:
            match action:
                case Answer(token, result):
                    sent = self.sent.pop(token, None)
                    if sent is not None:
                        self.promises.check_answer(sent.request, result)
                        sent.on_answer(result)
                case Refuse(token, error):
                    sent = self.sent.pop(token, None)
                    if sent is not None:
                        sent.on_refusal(error)
                case WriteMarkers(transactional_id, markers):
                    self.promises.check_decision(markers)
                    self.markers += [(transactional_id, m) for m in markers]

    # -- network

    def send(
        self, request: Request, on_answer: Callable[[Any], None], on_refusal: Callable[[SparklogError], None]
    ) -> Hashable:
        token = self.fresh()
        self.network.append((token, Sent(request, on_answer, on_refusal)))
        return token

    def deliver(self) -> None:
        i = self.choose(len(self.network))
        token, sent = self.network[i]
        if self.choose(4):
            del self.network[i]
        else:  # it comes again later: the first answer is lost
            token = self.fresh()
            sent = Sent(sent.request, lambda _: None, lambda _: None)
        self.promises.check_fence(sent)
        self.sent[token] = sent
        self.fill()
        self.apply(self.coordinator.handle(sent.request, token, self.now_ms))

    # -- writing

    def produce(self, client: Client, identity: Identity, sequence: int, tp: TopicPartition, value: Hashable) -> None:
        """As a broker does: verification, then, later, the append."""
        partition = self.partitions[tp]
        client.writes_pending += 1

        def failed(error: SparklogError) -> None:
            client.writes_pending -= 1
            client.is_dead = True  # without the write nothing of it may be committed: it stops here

        def append(guard: Guard | None) -> None:
            try:
                partition.write(identity, sequence, value, guard)
            except SparklogError as e:
                failed(e)
                return
            client.writes_pending -= 1
            client.acked.append((tp, value))

        try:
            guard = partition.rules.begin_verification(*identity, self.now_ms)
        except SparklogError as e:
            failed(e)
            return
        if guard is None:
            self.appends.append(lambda: append(None))
            return
        request = AddPartitions(client.transactional_id, *identity, (tp,))
        self.send(request, lambda _: self.appends.append(lambda: append(guard)), failed)

    def next_write(self, client: Client, value: Hashable) -> None:
        assert client.identity is not None
        tp = list(self.partitions)[self.choose(len(self.partitions))]
        sequence = client.sequences.get(tp, 0)
        client.sequences[tp] = sequence + 1
        self.produce(client, client.identity, sequence, tp, value)

    def late_write(self) -> None:
        """A batch of a transaction that its client believes ended: nobody may take it."""
        client = self.old_clients[self.choose(len(self.old_clients))]
        if not client.history:
            return
        identity, sequences = client.history[self.choose(len(client.history))]
        tp = list(self.partitions)[self.choose(len(self.partitions))]
        ghost = Client("ghost", client.transactional_id)
        value = ("late", self.fresh())
        self.produce(ghost, identity, sequences.get(tp, 0), tp, value)

    # -- plain clients

    def plain_step(self) -> None:
        transactional_id = ("one", "two")[self.choose(2)]
        client = self.clients.get(transactional_id)
        if client is None or client.is_dead or self.choose(40) == 0:
            self.start_plain(transactional_id, client)
            return
        if client.waiting is not None:
            if self.choose(6) == 0 and client.request is not None and len(self.network) < NETWORK_MAX:
                self.ask(client, client.request)  # no answer in time
            return
        if client.identity is None:
            self.ask(client, InitProducer(transactional_id, TIMEOUT_MS))
        elif client.writes_pending == 0 and client.acked and self.choose(3) == 0:
            commit = bool(self.choose(3))
            if commit:
                self.promises.commit_asked.add((client.name, client.number))
            self.ask(client, End(transactional_id, *client.identity, commit))
        elif len(self.network) < NETWORK_MAX:
            self.next_write(client, (client.name, client.number, self.fresh()))

    def start_plain(self, transactional_id: str, before: Plain | None) -> None:
        if before is not None:
            before.is_dead = True
        client = Plain(f"{transactional_id}-{self.fresh()}", transactional_id)
        self.clients[transactional_id] = client
        self.old_clients.append(client)

    def ask(self, client: Plain, request: Request) -> None:
        number = client.number

        def answered(result: Any) -> None:
            if client.waiting is None or client.number != number:
                return
            client.waiting = None
            if isinstance(request, End):
                assert client.identity is not None
                client.history.append((client.identity, dict(client.sequences)))
                client.number += 1
            client.identity, client.sequences, client.acked = result, {}, []

        def refused(error: SparklogError) -> None:
            if client.waiting is None or client.number != number:
                return
            client.waiting = None
            if isinstance(error, TransactionAbortedError) and isinstance(request, End):
                self.promises.commit_asked.discard((client.name, number))
                self.ask(client, request._replace(commit=False))
            elif not error.retriable:
                client.is_dead = True

        client.request = request
        client.waiting = self.send(request, answered, refused)

    # -- drivers and their tasks

    def driver_step(self) -> None:
        app = "app"
        alive = [d for d in self.drivers if d.result is None]
        if not alive or (self.choose(60) == 0 and len(alive) < 3):
            self.start_driver(app)
            return
        driver = alive[self.choose(len(alive))]
        if driver.ended is not None:
            if driver.waiting is None or (self.choose(6) == 0 and len(self.network) < NETWORK_MAX):
                self.end_driver(driver, driver.ended)
            return
        if len(driver.tasks) < 3 and self.choose(2) and len(self.network) < NETWORK_MAX:
            self.join(driver)
            return
        writers = [t for t in driver.tasks if t.identity is not None and not t.is_dead]
        if writers and self.choose(4) and len(self.network) < NETWORK_MAX:
            task = writers[self.choose(len(writers))]
            self.next_write(task, (task.name, driver.version, self.fresh()))
            return
        if any(t.identity is None and not t.is_dead for t in driver.tasks) and self.choose(8):
            return  # a driver waits for its tasks
        done = [t for t in writers if t.writes_pending == 0]
        if len(done) < len(writers) and self.choose(8):
            return
        if not writers and self.choose(4):
            return
        winners = frozenset(t.identity.producer_id for t in done if t.identity is not None and self.choose(3))
        commit = bool(self.choose(4))
        end = EndShared(
            shared_transactional_id(driver.app),
            driver.version,
            driver.run,
            driver.ticket,
            commit,
            winners if commit else frozenset(),
        )
        for task in driver.tasks:
            task.is_dead = self.choose(2) == 0 or task.is_dead  # the others are zombies
        self.end_driver(driver, end)

    def start_driver(self, app: str) -> None:
        key = shared_transactional_id(app)
        done = [v for a, v in self.promises.committed_versions if a == key]
        version = max(0, max(done, default=-1) + self.choose(2))  # its last batch again, or the next
        ticket = self.fresh()
        last = self.drivers[-1] if self.drivers else None
        run = last.run if last is not None and last.result and self.choose(2) else f"run-{ticket}"
        self.drivers.append(Driver(app, version, run, ticket))

    def join(self, driver: Driver) -> None:
        task = Task(f"task-{self.fresh()}", shared_transactional_id(driver.app), driver=driver)
        driver.tasks.append(task)

        def joined(result: Joined) -> None:
            if result.identity is None:
                task.is_dead = True
            else:
                task.identity = result.identity
                self.promises.owner[result.identity.producer_id] = driver

        def refused(_: SparklogError) -> None:
            task.is_dead = True

        request = Join(shared_transactional_id(driver.app), driver.version, driver.run, driver.ticket, TIMEOUT_MS)
        self.send(request, joined, refused)

    def end_driver(self, driver: Driver, end: EndShared) -> None:
        driver.ended = end

        def answered(result: bool) -> None:
            driver.result = result
            driver.waiting = None

        def refused(error: SparklogError) -> None:
            driver.waiting = None
            if not error.retriable:
                driver.result = False

        driver.waiting = self.send(end, answered, refused)

    # -- steps

    def step(self) -> None:
        """One thing happens."""
        options: list[Callable[[], None]] = [self.plain_step, self.driver_step, self.driver_step]
        if self.network:
            options += [self.deliver] * 4
        if self.pending:
            options += [self.append_done] * 4
        if self.markers:
            options += [self.write_marker] * 3
        if self.appends:
            options += [self.do_append] * 3
        if self.old_clients:
            options.append(self.late_write)
        rare = self.choose(40)
        if rare == 0:
            self.crash()
        elif rare == 1:
            self.tick()
        else:
            options[self.choose(len(options))]()
        self.promises.check_partitions()

    def write_marker(self) -> None:
        transactional_id, marker = self.markers.pop(self.choose(len(self.markers)))
        self.promises.check_marker(marker)
        self.partitions[marker.partition].mark(marker)
        if not any(m == marker for _, m in self.markers):
            self.apply(self.coordinator.markers_written(transactional_id, [marker], self.now_ms))

    def do_append(self) -> None:
        self.appends.pop(self.choose(len(self.appends)))()

    def tick(self) -> None:
        self.now_ms += 1 + self.choose(TIMEOUT_MS // 4)
        self.fill()
        self.apply(self.coordinator.tick(self.now_ms))

    def settle(self) -> None:
        """Everybody has gone; what is under way ends, time passes."""
        for _ in range(1000):
            if self.network:
                token, sent = self.network.pop(0)
                self.sent[token] = sent
                self.fill()
                self.apply(self.coordinator.handle(sent.request, token, self.now_ms))
            elif self.pending:
                self.append_done()
            elif self.appends:
                self.appends.pop(0)()
            elif self.markers:
                self.write_marker()
            else:
                break
        else:
            check(False, "it does not come to rest")
        before = self.now_ms
        for _ in range(50):
            self.now_ms += TIMEOUT_MS
            self.fill()
            self.apply(self.coordinator.tick(self.now_ms))
            while self.pending or self.markers:
                self.append_done() if self.pending else self.write_marker()
            if self.now_ms > before + 2 * TIMEOUT_MS:
                break
        self.promises.check_partitions()
        for tp, partition in self.partitions.items():
            check(not partition.open_producers(), f"a transaction stays open in {tp}: nothing behind it can be read")
        check(not self.sent, f"{len(self.sent)} requests are never answered: {[s.request for s in self.sent.values()]}")
