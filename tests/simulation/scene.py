"""The clients of a life: their roles, lives and histories, and the final reading. `World` adds brokers and faults."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparklog.errors import SparklogError
from sparklog.testing._sim_files import PowerCut
from sparklog.testing._sim_loop import SimLoop, Simulation, SimulationStuckError
from sparklog.testing._sim_net import SimNet
from sparklog.testing._sim_store import SimStore
from tests.campaigns.checker.history import Kind, Operation, Outcome, Recorder, Sent, parse_history
from tests.campaigns.torture.shared import rows_of
from tests.simulation import sim_intruders, sim_keepers, sim_members, sim_shared, sim_strangers
from tests.simulation.notes import Notes
from tests.simulation.plans import AGED, INPUT, KEYED, OUTPUT, Plan
from tests.simulation.sim_final import audit, committed_offsets, read_committed
from tests.simulation.sim_roles import ROLES, ClientContext

if TYPE_CHECKING:
    from tests.simulation.trouble import Trouble

PARTITIONS = 2
HEALING_S = 60.0
FINAL_S = 120.0
GROUPS = {"member": "group", "pipeline": "pipeline", "trespasser": "group", "auditor": "group"}
ALL_ROLES = {
    name: role
    for kind in (
        ROLES,
        sim_members.ROLES,
        sim_shared.ROLES,
        sim_intruders.ROLES,
        sim_strangers.ROLES,
        sim_keepers.ROLES,
    )
    for name, role in kind.items()
}


class Client:
    """One client: its successive lives and their histories."""

    def __init__(self, world: Scene, role: str, slot: int) -> None:
        self.role = role
        self.slot = slot
        self._world = world
        self.histories: list[io.BytesIO] = []
        self.loop: SimLoop | None = None
        self.host = ""
        self.task: Any = None
        self.leaves = False
        """True to end the client by itself, as after a close; its next life follows."""
        self.start()

    def start(self) -> None:
        world = self._world
        number = next(world.numbers)
        self.leaves = False
        self.loop = loop = world.simulation.loop(f"{self.role}-{number}")
        history = io.BytesIO()
        self.histories.append(history)
        recorder = Recorder(
            history, f"{self.role}-{number}", group=GROUPS.get(self.role, ""), reads_committed=self.role != "uncommitted",
            clock=world.now_ns,
        )  # fmt: skip
        self.host = f"client-{number}"
        client = world.connected(loop, self.host)
        told = ClientContext(
            world.seed, number, self.slot, client, recorder, world.inputs, world.outputs,
            lambda: world.wanted and not (self.leaves and self.loop is loop), world.done_batches,
            world.clock_ms, random.Random(world.simulation.rng.getrandbits(32)), world.plan, world.notes,
        )  # fmt: skip
        self.task = loop.create_task(ALL_ROLES[self.role](told))

    def kill(self) -> None:
        assert self.loop is not None
        self._world.net.process_died(self.loop)
        self.loop.kill()

    def look(self) -> None:
        """Start a client again that has ended by itself, as an application would."""
        if self.task.done() and self._world.wanted:
            self._world.simulation.note("ended", self.role, repr(self.task.exception()))
            if self.task.exception() is not None and not isinstance(self.task.exception(), SparklogError):
                raise self.task.exception()
            self.kill()
            self.start()


class Scene:
    """The clients, their histories, and a network."""

    trouble: Trouble

    def __init__(self, seed: int, plan: Plan, simulation: Simulation, store: SimStore | None = None) -> None:
        self.seed = seed
        self.plan = plan
        self.simulation = simulation
        self.numbers = itertools.count()
        self.net = SimNet(simulation, slow_share=plan.slow_share)
        self.inputs = [f"{INPUT}-{n}" for n in range(PARTITIONS)]
        self.outputs = [f"{OUTPUT}-{n}" for n in range(PARTITIONS)]
        self.wanted = True
        self.done_batches: dict[int, int] = {}
        self.notes = Notes(simulation)
        self.clients: list[Client] = []
        self.zombies: list[SimLoop] = []
        self.faults = 0
        self.store = store
        self._final: list[io.BytesIO] = []

    def connected(self, loop: SimLoop, host: str) -> Any:
        """Return a client's connection to the brokers."""
        raise NotImplementedError

    def clock_ms(self) -> int:
        """Return the clients' time."""
        raise NotImplementedError

    def now_ns(self) -> int:
        return int(self.simulation.now_s * 1e9) + 1

    def begin_clients(self) -> None:
        for role, count in self.plan.clients.items():
            self.clients += [Client(self, role, len(self.clients) + n) for n in range(count)]

    def check_loops(self, brokers: Iterable[SimLoop]) -> None:
        """Raise AssertionError for an unexpected failure in a loop."""
        for loop in (*brokers, *(c.loop for c in self.clients), *self.zombies):
            assert loop is not None
            for failure in loop.failures:
                error = failure.get("exception")
                if isinstance(error, PowerCut | SparklogError):
                    continue
                raise AssertionError(f"{loop.name} failed: {failure}") from error
        self.notes.check()

    def end_clients(self) -> None:
        """End the clients while everything works."""
        self.wanted = False
        end = self.simulation.now_s + HEALING_S
        self.simulation.run(lambda: all(c.task.done() for c in self.clients), limit_s=end)
        stuck = [c.loop.name for c in self.clients if c.loop is not None and not c.task.done()]
        if stuck:
            raise AssertionError(f"{HEALING_S:.0f} s after all was healed these are not done: {', '.join(stuck)}")
        for loop in self.zombies:
            self.net.process_died(loop)
            loop.kill()
        for client in self.clients:
            client.kill()

    def recorder(self, group: str = "") -> Recorder:
        """Return the recorder of a final reader."""
        self._final.append(io.BytesIO())
        return Recorder(self._final[-1], f"last-{group}", group=group, clock=self.now_ns)

    def read_everything(self) -> None:
        """Read everything up to the high watermarks after the healing; it waits for every earlier transaction."""
        loop = self.simulation.loop("last")
        try:
            self.simulation.complete(loop, self._last(loop), limit_s=FINAL_S)
        except (SimulationStuckError, SparklogError) as e:
            raise AssertionError(f"when all is healed not everything can be read: {e}") from e

    async def _last(self, loop: SimLoop) -> None:
        client = self.connected(loop, "last")
        names = [*self.inputs, *self.outputs]
        rows, decided = await read_committed(client, names, self.recorder())
        self.notes.on_final(rows)
        kept = [name for name in names if self._keeps_all(name)]
        self.notes.check_logs({name: await audit(client, name) for name in kept}, decided)
        if KEYED in self.plan.topics:
            self.notes.check_keyed((await read_committed(client, [f"{KEYED}-0"]))[0])
        if AGED in self.plan.topics:
            kept_bytes = int(str(self.plan.topics[AGED]["retention.bytes"]))
            await sim_keepers.check_aged(client, self.notes, kept_bytes)
        for role in self.plan.clients:
            if role in GROUPS:
                await committed_offsets(client, GROUPS[role], self.inputs, self.recorder(GROUPS[role]))

    def _keeps_all(self, name: str) -> bool:
        return self.plan.topics[name.rpartition("-")[0]].get("cleanup.policy") != "compact"

    @property
    def cleaned(self) -> int:
        """Amount of background work: segments compacted, objects in the store, records deleted."""
        written = self.store.writes if self.store is not None else 0
        return sum(disks.compacted for disks in self.trouble.disks.values()) + written + self.notes.aged_start

    def operations(self) -> list[Operation]:
        """Return the operations of all clients."""
        files = [*self._final, *(h for c in self.clients for h in c.histories)]
        found = [o for f in files for o in parse_history(f.getvalue())]
        for client in self.clients:
            if client.role == "shared":
                found += _batches(client.slot, self.done_batches.get(client.slot, 0), self.inputs)
        return found


def _batches(slot: int, done: int, partitions: Sequence[str]) -> list[Operation]:
    """Return a transaction for each batch of a shared writer; the one after the last complete batch may exist or
    not."""
    return [
        Operation(
            f"shared-{slot}", batch, Kind.TRANSACTION, Outcome.OK if batch < done else Outcome.UNKNOWN,
            commit_asked_ns=0,
            steps=tuple(Sent(p, v, [-1] * len(v), [-1] * len(v)) for p, v in rows_of(slot, batch, partitions)),
        )
        for batch in range(done + 1)
    ]  # fmt: skip
