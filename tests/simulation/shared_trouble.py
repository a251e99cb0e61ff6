"""The common faults of lives of one broker and of several: clients, the network, clocks, disks, the object store. Each
kind is a method, drawn by the plan.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.log.compaction.swap import CLEANED_SUFFIX
from sparklog.testing.sim_loop import SimLoop
from sparklog.testing.sim_machine import SimMachine

if TYPE_CHECKING:
    from tests.simulation.world import Scene

REPLACED = frozenset({"transactional", "pipeline", "member", "shared"})
"""Roles whose next life fences the previous one."""
CHANGES = frozenset({"write", "truncate", "create", "make directory", "rename"})
"""Operations that need space."""
OPENS = frozenset({"open", "create", "list"})


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


class SharedTrouble:
    """The common faults. A world of one broker waits during a fault; a world of several continues (`after`)."""

    world: Scene

    def __init__(self, world: Scene) -> None:
        self.world = world
        self.sim = world.simulation
        self.rng = world.simulation.rng

    def strike(self, kind: str) -> None:
        self.sim.note("fault", kind)
        getattr(self, kind.replace(" ", "_"))()

    def equip(self, machine: SimMachine, disks: Disks) -> None:
        """Connect the machine's file system with the faults of its disks."""
        machine.files.fault = disks.fault
        machine.files.part_of = lambda size_bytes: self.rng.randint(0, size_bytes)

    # --- what differs

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run `action` after `seconds`."""
        raise NotImplementedError

    def pause(self, loop: SimLoop | None) -> None:
        """Pause a process for a while (SIGSTOP)."""
        raise NotImplementedError

    def some_host(self) -> str:
        """Return the host of a broker."""
        raise NotImplementedError

    def some_machine(self) -> SimMachine:
        raise NotImplementedError

    def some_disks(self) -> Disks:
        """Return the disks of a machine."""
        raise NotImplementedError

    def all_disks(self) -> list[Disks]:
        raise NotImplementedError

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
        stuck = net.delay_some(self.some_host(), 0.5, answers=answers)
        self.after(self.rng.random() * 0.5, lambda: net.leave_behind(c for c in stuck if c.is_open))

    # --- clocks, disks, the store

    def jump_clock(self) -> None:
        self.some_machine().clock.offset_ms += self.rng.choice([-3_600_000, -500, 500, 60_000, 3_600_000])

    def jump_clock_far(self) -> None:
        """Set the clock forward by more than any age limit."""
        self.some_machine().clock.offset_ms += self.rng.choice([1, 3, 24, 24 * 30]) * 3_600_000

    def _disk(self) -> str:
        return self.rng.choice(self.world.plan.disks)

    def full_disk(self) -> None:
        self.some_disks().full.add(self._disk())

    def shortage(self) -> None:
        """Let the descriptors run out."""
        self.some_disks().short = True

    def space_again(self) -> None:
        for disks in self.all_disks():
            disks.full.clear()
            disks.short = False

    def one_disk_error(self) -> None:
        operation = self.rng.choice(["write", "sync", "sync", "rename", "create", "read", "truncate", "remove"])
        once = self._disk(), operation, self.rng.choice([errno.EIO, errno.ENOSPC])
        self.some_disks().once = once

    def one_full_write(self) -> None:
        """Fail one write for lack of space."""
        self.some_disks().once = self._disk(), "write", errno.ENOSPC

    def store_fails(self) -> None:
        store, share = self.world.store, self.rng.choice([0.2, 1.0])
        assert store is not None
        store.fault = lambda _: self.rng.random() < share

    def store_works(self) -> None:
        assert self.world.store is not None
        self.world.store.fault = lambda _: False


def wake(loop: SimLoop) -> None:
    """Continue a paused process (SIGCONT)."""
    loop.is_paused = False
