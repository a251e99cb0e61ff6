"""The faults of all lives: brokers, clients, the network, clocks, disks, the object store. Each kind is a method, drawn
by the plan. `alone.py` and `cluster/trouble.py` add the faults of one broker, and of several.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.log.compaction.swap import CLEANED_SUFFIX
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_machine import SimMachine

if TYPE_CHECKING:
    from sparklog.testing._sim_node import Node
    from tests.simulation.world import World

REPLACED = frozenset({"transactional", "pipeline", "member", "shared"})
"""Roles whose next life fences the previous one."""
CHANGES = frozenset({"write", "truncate", "create", "make directory", "rename"})
"""Operations that need space."""
OPENS = frozenset({"open", "create", "list"})
STOP_LIMIT_S = 20.0


class Disks:
    """Faults of the machine's disks, by the first directory of a path."""

    def __init__(self) -> None:
        self.full: set[str] = set()
        self.broken: set[str] = set()
        self.short = False
        self.once: tuple[str, str, int] | None = None
        """Operation, disk and error number of a single failing call, or None."""
        self.touched = 0
        """Number of failed calls."""
        self.compacted = 0
        """Number of segments that compaction has replaced."""

    def fault(self, operation: str, path: Path) -> int:
        """Return the error number of a call for `SimFiles`; 0 for success."""
        self.compacted += operation == "rename" and path.suffix == CLEANED_SUFFIX
        if not (self.full or self.broken or self.short or self.once):
            return 0
        number = self._fault(operation, "/" + path.parts[1])
        self.touched += number != 0 and operation != "space"
        return number

    def _fault(self, operation: str, disk: str) -> int:
        if disk in self.broken:
            return errno.EIO
        if disk in self.full and (operation in CHANGES or operation == "space"):
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
    """The faults. In a cluster other faults go on during one; with one broker the life waits (`after`)."""

    down_s: float
    """Longest time for which a broker is down."""
    cuts_s: Sequence[float]
    """Longest times of a cut or of a broker's pause; one of them is drawn."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sim = world.simulation
        self.rng = world.simulation.rng
        self.disks = {node.id: Disks() for node in world.nodes}
        self.suspects: dict[int, int] = {}
        """Brokers that crashed, with the life of the crash: until they are in sync again they may lack records."""
        for node in world.nodes:
            self.equip(node.machine, self.disks[node.id])

    @property
    def touched(self) -> int:
        """Number of failed calls of file systems."""
        return sum(disks.touched for disks in self.disks.values())

    @property
    def courses_completed(self) -> int:
        """Number of courses that have reached their point."""
        return 0

    def strike(self, kind: str) -> None:
        self.sim.note("fault", kind)
        getattr(self, kind.replace(" ", "_"))()

    def equip(self, machine: SimMachine, disks: Disks) -> None:
        """Connect the machine's file system with the faults of its disks."""
        machine.files.fault = disks.fault
        machine.files.part_of = lambda size_bytes: self.rng.randint(0, size_bytes)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run `action` after `seconds`."""
        raise NotImplementedError

    def pause(self, loop: SimLoop | None) -> None:
        """Pause a process for a while (SIGSTOP)."""
        raise NotImplementedError

    # --- whom it hits

    def _node(self) -> Node:
        """Return a broker, with a bias towards leaders, which have something to lose."""
        if self.world.is_alone:
            return self.world.nodes[0]
        leaders = [n for n in self.world.nodes if self.world.leads_something(n)]
        if leaders and self.rng.random() < 0.4:
            return self.rng.choice(leaders)
        return self.rng.choice(self.world.nodes)

    def _can_spare(self, node: Node) -> bool:
        """True if at least one other broker is active, so that lives make progress, or if there is no other."""
        return len(self.world.nodes) == 1 or any(
            n.is_alive and not n.is_paused for n in self.world.nodes if n is not node
        )

    def _in_sync(self, node: Node) -> bool:
        image = self.world.controller_image()
        return (
            image is not None
            and node.has_joined
            and node.broker_epoch >= 0
            and image.known.get(node.id) == node.broker_epoch
            and all(
                node.id in p.isr and p.leader >= 0
                for topic in image.topics.values()
                for p in topic.partitions
                if node.id in p.replicas
            )
        )

    def may_crash(self, node: Node) -> bool:
        """True if the broker may crash: without flushes, acknowledged records survive one crash at a time."""
        if self.world.is_flushed:
            return True
        for suspect, life in list(self.suspects.items()):
            found = self.world.node(suspect)
            if found.life > life and self._in_sync(found):
                del self.suspects[suspect]
        return not set(self.suspects) - {node.id}

    # --- brokers

    def kill_broker(self) -> None:
        node = self._node()
        if not node.is_alive:
            self.revive(node)
        elif self.may_crash(node) and self._can_spare(node):
            self._crashed(node, node.kill)

    def power_cut(self) -> None:
        node = self._node()
        if node.is_alive and self.may_crash(node):
            self._crashed(node, node.power_cut)

    def power_cut_at_step(self) -> None:
        """Schedule a power cut at one of the next calls of the file system, perhaps during a recovery."""
        files = self._node().machine.files
        files.cut_at = len(files.calls) + self.rng.randrange(60)

    def is_off(self, node: Node) -> None:
        """Handle a power cut at a scheduled step."""
        self._crashed(node, node.power_cut)

    def _crashed(self, node: Node, crash: Callable[[], None]) -> None:
        self.suspects[node.id] = node.life
        crash()
        self._restart_later(node)

    def _restart_later(self, node: Node) -> None:
        """Start the broker again, sometimes before its session has ended."""
        life = node.life
        self.after(self.rng.random() * self.down_s, lambda: self.revive(node) if node.life == life else None)

    def revive(self, node: Node) -> None:
        if not node.is_alive and not node.machine.files.is_off:
            node.start()

    def stop_broker(self) -> None:
        node = self._node()
        if node.is_alive and not node.is_paused and node.has_joined and self.may_crash(node) and self._can_spare(node):
            if not node.stop(self.rng.choice([STOP_LIMIT_S, STOP_LIMIT_S, 0.2])):
                self.suspects[node.id] = node.life
            self._restart_later(node)

    def give_up(self, node: Node) -> None:
        """Repair and restart a broker whose process has ended by itself."""
        self.sim.note("gave up", node.id, node.failed)
        self.disks[node.id].heal()
        self._crashed(node, node.power_cut if self.disks[node.id].touched else node.kill)

    def pause_broker(self) -> None:
        node = self._node()
        if not node.is_alive or node.is_paused or not self._can_spare(node):
            return
        seconds = self.rng.random() * self.rng.choice(self.cuts_s) + 0.05
        life = node.life
        node.pause(seconds)
        self.after(seconds, lambda: node.resume() if node.is_alive and node.life == life else None)

    # --- clients

    def kill_client(self) -> None:
        client = self.rng.choice(self.world.clients)
        client.kill()
        client.start()

    def pause_client(self) -> None:
        self.pause(self.rng.choice(self.world.clients).loop)

    def zombie_client(self) -> None:
        """Pause a client while its next life begins; then both continue."""
        client = self.rng.choice([c for c in self.world.clients if c.role in REPLACED])
        zombie = client.loop
        assert zombie is not None
        zombie.is_paused = True
        self.world.zombies.append(zombie)
        client.start()
        self.after(self.rng.random() * 1.5, lambda: wake(zombie))

    def leave_group(self) -> None:
        """Close a member; another one begins."""
        members = [c for c in self.world.clients if c.role in ("member", "pipeline")]
        self.rng.choice(members).leaves = True

    # --- the network

    def reset_connections(self) -> None:
        self.world.net.reset_some(0.3)

    def late_requests(self) -> None:
        """Delay clients' requests: the clients give up, reconnect and continue, and then the requests arrive."""
        self._leave_late(answers=False)

    def late_answers(self) -> None:
        """Delay a broker's answers until the clients repeat their requests."""
        self._leave_late(answers=True)

    def _leave_late(self, *, answers: bool) -> None:
        net = self.world.net
        stuck = net.delay_some(self._node().host, 0.5, answers=answers)
        self.after(self.rng.random() * 0.5, lambda: net.leave_behind(c for c in stuck if c.is_open))

    def cut_client(self) -> None:
        """Cut the link between a client and a broker, in one direction."""
        client, node = self.rng.choice(self.world.clients), self._node()
        pair = [client.host, node.host]
        self.rng.shuffle(pair)
        self._cut([(pair[0], pair[1])])

    def _cut(self, links: list[tuple[str, str]]) -> float:
        net = self.world.net
        seconds = self.rng.random() * self.rng.choice(self.cuts_s) + 0.05
        for link in links:
            net.cut(*link)
        self.after(seconds, lambda: net.heal_links(links))
        return seconds

    # --- clocks, disks, the store

    def jump_clock(self) -> None:
        self._node().machine.clock.offset_ms += self.rng.choice([-3_600_000, -500, 500, 60_000, 3_600_000])

    def jump_clock_far(self) -> None:
        """Set the clock forward by more than any age limit."""
        self._node().machine.clock.offset_ms += self.rng.choice([1, 3, 24, 24 * 30]) * 3_600_000

    def _disk(self) -> str:
        return self.rng.choice(self.world.plan.disks)

    def full_disk(self) -> None:
        self.disks[self._node().id].full.add(self._disk())

    def shortage(self) -> None:
        """Let the descriptors run out."""
        self.disks[self._node().id].short = True

    def space_again(self) -> None:
        for disks in self.disks.values():
            disks.full.clear()
            disks.short = False

    def one_disk_error(self) -> None:
        operation = self.rng.choice(["write", "sync", "sync", "rename", "create", "read", "truncate", "remove"])
        once = self._disk(), operation, self.rng.choice([errno.EIO, errno.ENOSPC])
        self.disks[self._node().id].once = once

    def one_full_write(self) -> None:
        """Fail one write for lack of space."""
        self.disks[self._node().id].once = self._disk(), "write", errno.ENOSPC

    def broken_disk(self) -> None:
        """Break a disk; in a cluster one at a time."""
        if self.world.is_alone or not any(disks.broken for disks in self.disks.values()):
            self.disks[self._node().id].broken.add(self._disk())

    def new_disk(self) -> None:
        """Replace a broken disk; lost data come back only with a restart, as the broker's message asks."""
        for node in self.world.nodes:
            disks = self.disks[node.id]
            if node.is_alive and not node.is_paused and (disks.broken or disks.touched) and self.may_crash(node):
                disks.heal()
                self._crashed(node, self.rng.choice([node.kill, node.power_cut]))
                return

    def store_fails(self) -> None:
        store, share = self.world.store, self.rng.choice([0.2, 1.0])
        assert store is not None
        store.fault = lambda _: self.rng.random() < share

    def store_works(self) -> None:
        assert self.world.store is not None
        self.world.store.fault = lambda _: False

    # --- the end

    def heal(self) -> None:
        """End all faults, and start all brokers."""
        self.world.net.heal()
        if self.world.store is not None:
            self.store_works()
        for client in self.world.clients:
            assert client.loop is not None
            client.loop.is_paused = False
        for node in self.world.nodes:
            node.machine.files.cut_at = None
            had_trouble = self.disks[node.id].touched > 0
            self.disks[node.id].heal()
            if node.machine.files.is_off:
                node.power_cut()
            elif node.is_alive and had_trouble:
                node.kill()
            if not node.is_alive:
                node.start()
            elif node.is_paused:
                node.resume()
            node.heal_zookeeper()


def wake(loop: SimLoop) -> None:
    """Continue a paused process (SIGCONT)."""
    loop.is_paused = False
