"""What goes wrong in a life: each kind a method, drawn by the plan."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.log.compaction.swap import CLEANED_SUFFIX
from sparklog.testing import faults
from sparklog.testing.sim_files import PowerCut
from sparklog.testing.sim_loop import SimLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

REPLACED = frozenset({"transactional", "pipeline", "member", "shared"})
"""Roles whose next life fences the one before."""
CHANGES = frozenset({"write", "truncate", "create", "make directory", "rename"})
"""What needs space."""
OPENS = frozenset({"open", "create", "list"})


class Disks:
    """Faults of the machine's disks, by the first directory of a path."""

    def __init__(self) -> None:
        self.full: set[str] = set()
        self.broken: set[str] = set()
        self.short = False
        self.once: tuple[str, str, int] | None = None
        """The next call of such an operation on such a disk, and what it fails with."""
        self.touched = 0
        """How many calls have failed."""
        self.compacted = 0
        """How many segments compaction has put in the place of others."""

    def fault(self, operation: str, path: Path) -> int:
        """For `SimFiles`."""
        self.compacted += operation == "rename" and path.suffix == CLEANED_SUFFIX
        if not (self.full or self.broken or self.short or self.once):
            return 0
        number = self._fault(operation, "/" + path.parts[1])
        self.touched += number != 0
        return number

    def _fault(self, operation: str, disk: str) -> int:
        if disk in self.broken:
            return errno.EIO
        if disk in self.full and operation in CHANGES:
            return errno.ENOSPC
        if self.short and operation in OPENS:
            return errno.EMFILE
        if self.once is not None and self.once[:2] == (disk, operation):
            number, self.once = self.once[2], None
            return number
        return 0

    def heal(self) -> None:
        self.full.clear()
        self.broken.clear()
        self.short, self.once = False, None


class Trouble:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sim = world.simulation
        self.rng = world.simulation.rng
        self.disks = Disks()
        world.machine.files.fault = self.disks.fault
        world.machine.files.part_of = lambda size_bytes: self.rng.randint(0, size_bytes)

    def strike(self, kind: str) -> None:
        self.sim.note("fault", kind)
        getattr(self, kind.replace(" ", "_"))()

    # -- the broker

    def kill_broker(self) -> None:
        self.world.broker.kill()
        self._pass_dead()
        self.start_broker()

    def stop_broker(self) -> None:
        try:
            self.world.broker.stop()
        except PowerCut:
            self.power_cut()
            return
        self.start_broker()

    def pause_broker(self) -> None:
        self._pause(self.world.broker.loop)

    def kill_broker_at_marker(self) -> None:
        """Between two markers of one transaction, or right before or after one is decided or complete."""
        names = ("txn.between-markers", "txn.before-completion", "txn.after-completion", "txn.after-decision")
        files = self.world.machine.files
        faults.call_at(self.rng.choice(names), files.stop)
        try:
            is_there = self.sim.run(lambda: files.is_off, limit_s=self.sim.now_s + 1.0)
        finally:
            faults.disarm()
        if is_there:
            self.kill_broker()

    def start_broker(self) -> None:
        """Starts it; a power cut that was to come at one of the next steps may come meanwhile."""
        try:
            self._start_broker()
        except PowerCut:
            self.power_cut()

    def _start_broker(self) -> None:
        """A broker whose disks are broken may not come up: then they are replaced first, as an operator would."""
        if not self.world.broker.try_start():
            self.disks.heal()
            self.world.broker.start()
        for tp in self.world.broker.repair():
            self.sim.note("repaired", str(tp))
            self.world.notes.repaired(str(tp))
        self.world.tune_internal_topics()

    def power_cut(self) -> None:
        self.world.broker.power_cut()
        self._pass_dead()
        self._start_through_power_cuts()

    def power_cut_at_step(self) -> None:
        """The power goes at one of the next calls of the file system."""
        files = self.world.machine.files
        files.cut_at = len(files.calls) + self.rng.randrange(60)

    def _start_through_power_cuts(self) -> None:
        """Now and then the power goes again while the broker recovers."""
        files = self.world.machine.files
        for _ in range(3):
            if self.rng.random() < 0.2:
                files.cut_at = len(files.calls) + self.rng.randrange(20)
            try:
                self._start_broker()
            except PowerCut:
                self.world.broker.power_cut()
                continue
            files.cut_at = None
            return
        self._start_broker()

    def _pass_dead(self) -> None:
        self.sim.run_for(self.rng.random())

    # -- clients

    def kill_client(self) -> None:
        client = self.rng.choice(self.world.clients)
        client.kill()
        client.start()

    def pause_client(self) -> None:
        self._pause(self.rng.choice(self.world.clients).loop)

    def _pause(self, loop: SimLoop | None) -> None:
        """SIGSTOP for a while: sometimes longer than sessions and transactions last."""
        assert loop is not None
        loop.is_paused = True
        self.world.run_for(self.rng.random() * (20.0 if self.rng.random() < 0.2 else 1.0))
        loop.is_paused = False

    def zombie_client(self) -> None:
        """A client sleeps while its next life begins; then both go on."""
        client = self.rng.choice([c for c in self.world.clients if c.role in REPLACED])
        zombie = client.loop
        assert zombie is not None
        zombie.is_paused = True
        self.world.zombies.append(zombie)
        client.start()
        self.world.run_for(self.rng.random() * 1.5)
        zombie.is_paused = False

    def leave_group(self) -> None:
        """A member is closed, and another one begins."""
        members = [c for c in self.world.clients if c.role in ("member", "pipeline")]
        client = self.rng.choice(members)
        client.leaves = True

    # -- the network

    def reset_connections(self) -> None:
        self.world.net.reset_some(0.3)

    def late_requests(self) -> None:
        """What some clients send gets stuck on its way; they give up, come back and go on; then it arrives."""
        self._leave_late(answers=False)

    def late_answers(self) -> None:
        """What the broker says does not arrive for so long that clients ask again."""
        self._leave_late(answers=True)

    def _leave_late(self, *, answers: bool) -> None:
        net = self.world.net
        stuck = net.delay_some(self.world.broker.host, 0.5, answers=answers)
        self.world.run_for(self.rng.random() * 0.5)
        net.leave_behind(c for c in stuck if c.is_open)

    def cut_network(self) -> None:
        """One client's messages, or the broker's answers, do not pass for a while."""
        net = self.world.net
        hosts = sorted({c.peer_host for c in net.connections if c.host == self.world.broker.host})
        if hosts:
            pair = [self.rng.choice(hosts), self.world.broker.host]
            self.rng.shuffle(pair)
            net.cut(*pair)
            self.world.pass_time(self.rng.uniform(0.1, 12.0) if self.rng.random() < 0.3 else self.rng.random())
            net.heal()

    # -- clocks, disks, the store

    def jump_clock(self) -> None:
        self.world.machine.clock.offset_ms += self.rng.choice([-3_600_000, -500, 500, 60_000, 3_600_000])

    def jump_clock_far(self) -> None:
        """Forward, by more than anything may be old."""
        self.world.machine.clock.offset_ms += self.rng.choice([1, 3, 24, 24 * 30]) * 3_600_000

    def _disk(self) -> str:
        return self.rng.choice(self.world.plan.disks)

    def full_disk(self) -> None:
        self.disks.full.add(self._disk())

    def shortage(self) -> None:
        """Of descriptors."""
        self.disks.short = True

    def space_again(self) -> None:
        self.disks.full.clear()
        self.disks.short = False

    def one_disk_error(self) -> None:
        operation = self.rng.choice(["write", "sync", "sync", "rename", "create", "read", "truncate", "remove"])
        self.disks.once = self._disk(), operation, self.rng.choice([errno.EIO, errno.ENOSPC])

    def one_full_write(self) -> None:
        """Somebody else takes the last space for a moment."""
        self.disks.once = self._disk(), "write", errno.ENOSPC

    def broken_disk(self) -> None:
        self.disks.broken.add(self._disk())

    def new_disk(self) -> None:
        """What a broken disk has lost comes back with a power cut; the broker is restarted, as its message asks for."""
        if self.disks.touched:
            self.disks.heal()
            self.rng.choice([self.stop_broker, self.kill_broker, self.power_cut])()

    def store_fails(self) -> None:
        store, share = self.world.store, self.rng.choice([0.2, 1.0])
        assert store is not None
        store.fault = lambda _: self.rng.random() < share

    def store_works(self) -> None:
        assert self.world.store is not None
        self.world.store.fault = lambda _: False

    def heal(self) -> None:
        """Everything works again."""
        files = self.world.machine.files
        files.cut_at = None
        self.disks.heal()
        self.world.net.heal()
        if files.is_off:  # since the last fault
            self.power_cut()
        if self.world.store is not None:
            self.store_works()
        if self.disks.touched:
            self.kill_broker()
