"""Named steps at which a process kills itself, stops or fails, so that tests can crash it exactly there.

Code calls `reach("step-name")` at the worst steps for a crash; docs/internals/delivery.md lists them. Without the
environment variable SPARKLOG_FAULT, a call of `reach` does nothing.

    SPARKLOG_FAULT=txn.after-decision:kill        SIGKILL to itself, the first time the step is reached
    SPARKLOG_FAULT=txn.after-decision:3:stop      SIGSTOP to itself the third time; the test sends SIGCONT or SIGKILL
    SPARKLOG_FAULT=txn.after-decision:raise       raises InjectedFault
    SPARKLOG_FAULT=a:raise,b:kill                 several faults

A process that is started again has the same environment, and would have the same fault. With SPARKLOG_FAULT_MARK, only
the process that can create the file `<mark>.<step>` has the fault. So the fault occurs once among all processes with
the same mark. The file then has the process id, and proves to a campaign that the fault has occurred.

Only the callers of `reach` and tests import this module, and it imports nothing from sparklog.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["VARIABLE", "VARIABLE_MARK", "Fault", "InjectedFault", "arm", "call_at", "disarm", "parse_fault", "reach"]

VARIABLE = "SPARKLOG_FAULT"
VARIABLE_MARK = "SPARKLOG_FAULT_MARK"
ACTIONS = ("kill", "stop", "raise")


class InjectedFault(Exception):  # noqa: N818  it is no error of the program
    """The exception of the action `raise`. It is not a SparklogError, because no code may handle it as a known
    failure."""


class Fault(NamedTuple):
    """A fault: `action` (kill, stop or raise) at the `nth` time that the process reaches `step`, counted from 1."""

    step: str
    nth: int
    action: str


def parse_fault(text: str) -> Fault:
    """Parse `step:action` or `step:nth:action`. Raises ValueError."""
    step, _, rest = text.partition(":")
    nth, colon, action = rest.rpartition(":")
    if not colon:
        nth = "1"
    if not step or action not in ACTIONS or not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{VARIABLE}={text!r}: expected <step>[:<nth>]:<{'|'.join(ACTIONS)}>")
    return Fault(step, int(nth), action)


class _ArmedFault:
    """A fault of this process."""

    def __init__(self, fault: Fault, mark: str | None) -> None:
        self._fault = fault
        self._mark = mark
        self._lock = threading.Lock()
        self._remaining = fault.nth

    def reach(self, step: str) -> None:
        if step != self._fault.step:
            return
        with self._lock:
            self._remaining -= 1
            due = self._remaining == 0
        if due and self._is_ours(step):
            if self._fault.action == "raise":
                raise InjectedFault(step)
            os.kill(os.getpid(), signal.SIGKILL if self._fault.action == "kill" else signal.SIGSTOP)

    def _is_ours(self, step: str) -> bool:
        if self._mark is None:
            return True
        try:
            descriptor = os.open(f"{self._mark}.{step}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        os.write(descriptor, f"{os.getpid()}\n".encode())
        os.close(descriptor)
        return True


class _Call:
    """A function that is called the first time `step` is reached, instead of a fault."""

    def __init__(self, step: str, action: Callable[[], None]) -> None:
        self._step = step
        self._action = action

    def reach(self, step: str) -> None:
        if step == self._step and self in _armed:
            _armed.remove(self)
            self._action()


_armed: list[_ArmedFault | _Call] = []


def reach(step: str) -> None:
    """Report that the process has reached `step`. Carries out the armed faults of this step; raises InjectedFault for
    the action `raise`."""
    for armed in _armed:
        armed.reach(step)


def arm(faults: str, mark: str | None = None) -> None:
    """Replace the armed faults by those in `faults`, which has the form of SPARKLOG_FAULT. `mark`: as
    SPARKLOG_FAULT_MARK; None: no mark. Raises ValueError."""
    _armed[:] = [_ArmedFault(parse_fault(fault), mark) for fault in faults.split(",")]


def call_at(step: str, action: Callable[[], None]) -> None:
    """Replace the armed faults by a call of `action`, the first time that `step` is reached."""
    _armed[:] = [_Call(step, action)]


def disarm() -> None:
    """Remove all faults."""
    _armed.clear()


if VARIABLE in os.environ:
    arm(os.environ[VARIABLE], os.environ.get(VARIABLE_MARK))
