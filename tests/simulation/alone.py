"""The faults of a life with one broker: one after the other, since nothing works while the broker is away."""

from __future__ import annotations

from collections.abc import Callable

from sparklog.environment import fault_points as faults
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_node import Node
from tests.simulation.trouble import Trouble, wake


class AloneTrouble(Trouble):
    """The faults of a world with one broker."""

    down_s = 1.0
    cuts_s = (1.0, 1.0, 1.0, 20.0)
    """Sometimes longer than requests, sessions and transactions last."""

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.sim.run_for(seconds)
        action()

    def pause(self, loop: SimLoop | None) -> None:
        assert loop is not None
        loop.is_paused = True
        self.after(self.rng.random() * (20.0 if self.rng.random() < 0.2 else 1.0), lambda: wake(loop))

    def revive(self, node: Node) -> None:
        """Start the broker; in lives with power cuts at any step, sometimes with one during the recovery."""
        super().revive(node)
        if "power cut at step" in self.world.plan.faults and self.rng.random() < 0.2:
            files = node.machine.files
            files.cut_at = len(files.calls) + self.rng.randrange(20)

    def kill_broker_at_marker(self) -> None:
        """Kill the broker between two markers of one transaction, or just before or after its decision or
        completion."""
        names = ("txn.between-markers", "txn.before-completion", "txn.after-completion", "txn.after-decision")
        files = self.world.nodes[0].machine.files
        faults.call_at(self.rng.choice(names), files.stop)
        try:
            is_there = self.sim.run(lambda: files.is_off, limit_s=self.sim.now_s + 1.0)
        finally:
            faults.disarm()
        if is_there:
            self.kill_broker()
