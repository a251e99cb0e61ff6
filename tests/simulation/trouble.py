"""The faults of a life, each a method, drawn by the plan. There is one fault at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparklog.environment import fault_points as faults
from sparklog.testing.sim_files import PowerCut
from sparklog.testing.sim_loop import SimLoop
from sparklog.testing.sim_machine import SimMachine
from tests.simulation.shared_trouble import Disks, SharedTrouble, wake

if TYPE_CHECKING:
    from tests.simulation.world import World


class Trouble(SharedTrouble):
    """The faults of a world with one broker."""

    world: World

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.disks = Disks()
        self.equip(world.machine, self.disks)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.world.run_for(seconds)
        action()

    def pause(self, loop: SimLoop | None) -> None:
        """Pause a process, sometimes for longer than sessions and transactions last."""
        assert loop is not None
        loop.is_paused = True
        self.after(self.rng.random() * (20.0 if self.rng.random() < 0.2 else 1.0), lambda: wake(loop))

    def some_host(self) -> str:
        return self.world.broker.host

    def some_machine(self) -> SimMachine:
        return self.world.machine

    def some_disks(self) -> Disks:
        return self.disks

    def all_disks(self) -> list[Disks]:
        return [self.disks]

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
        self.pause(self.world.broker.loop)

    def kill_broker_at_marker(self) -> None:
        """Kill the broker between two markers of one transaction, or just before or after its decision or
        completion."""
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
        """Start the broker; a scheduled power cut may come meanwhile."""
        try:
            self._start_broker()
        except PowerCut:
            self.power_cut()

    def _start_broker(self) -> None:
        """Start the broker. If its broken disks prevent that, replace them first, as an operator would."""
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
        """Schedule a power cut at one of the next calls of the file system."""
        files = self.world.machine.files
        files.cut_at = len(files.calls) + self.rng.randrange(60)

    def _start_through_power_cuts(self) -> None:
        """Start the broker, sometimes with power cuts during the recovery."""
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

    # -- the network

    def cut_network(self) -> None:
        """Drop one client's messages, or the broker's answers, for a while."""
        net = self.world.net
        hosts = sorted({c.peer_host for c in net.connections if c.host == self.world.broker.host})
        if hosts:
            pair = [self.rng.choice(hosts), self.world.broker.host]
            self.rng.shuffle(pair)
            net.cut(*pair)
            self.world.pass_time(self.rng.uniform(0.1, 12.0) if self.rng.random() < 0.3 else self.rng.random())
            net.heal()

    # -- disks

    def broken_disk(self) -> None:
        self.disks.broken.add(self._disk())

    def new_disk(self) -> None:
        """Replace a broken disk, and restart the broker as its message asks. Lost data come back only after a power
        cut."""
        if self.disks.touched:
            self.disks.heal()
            self.rng.choice([self.stop_broker, self.kill_broker, self.power_cut])()

    def heal(self) -> None:
        """End all faults."""
        files = self.world.machine.files
        files.cut_at = None
        self.disks.heal()
        self.world.net.heal()
        if files.is_off:  # a power cut since the last fault
            self.power_cut()
        if self.world.store is not None:
            self.store_works()
        if self.disks.touched:
            self.kill_broker()
