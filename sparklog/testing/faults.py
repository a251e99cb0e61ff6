"""Named steps at which a process ends itself, stops or fails, so that tests can crash it exactly there.

Code calls `reach("step-name")` where a crash would be worst; docs/internals/delivery.md lists the steps. Without the
environment variable SPARKLOG_FAULT a call does nothing but compare with None.

    SPARKLOG_FAULT=end-txn-prepared:kill        SIGKILL to itself, the first time the step is reached
    SPARKLOG_FAULT=end-txn-prepared:3:stop      SIGSTOP to itself the third time; whoever watches sends SIGCONT or SIGKILL
    SPARKLOG_FAULT=end-txn-prepared:raise       raises InjectedFault

A process that is started again has the same environment and would meet the same end. SPARKLOG_FAULT_MARK names a file:
the fault happens only to the process that can create it, so once among all that share the file, which then says
`<step> <pid>`. That is also how a campaign knows that its fault was not an idle one.

Nothing here is imported by anything but `reach`'s callers and tests, and nothing is imported from sparklog.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import NamedTuple

__all__ = ["VARIABLE", "VARIABLE_MARK", "Fault", "InjectedFault", "arm", "disarm", "parse_fault", "reach"]

VARIABLE = "SPARKLOG_FAULT"
VARIABLE_MARK = "SPARKLOG_FAULT_MARK"
ACTIONS = ("kill", "stop", "raise")


class InjectedFault(Exception):  # noqa: N818  it is no error of the program
    """What `raise` raises. Not a SparklogError: nothing may take it for a failure it knows how to handle."""


class Fault(NamedTuple):
    """What happens the `nth` time (from 1) that `step` is reached."""

    step: str
    nth: int
    action: str


def parse_fault(text: str) -> Fault:
    """`step:action` or `step:nth:action`. Raises ValueError that says what is wrong."""
    step, _, rest = text.partition(":")
    nth, colon, action = rest.rpartition(":")
    if not colon:
        nth = "1"
    if not step or action not in ACTIONS or not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{VARIABLE}={text!r}: expected <step>[:<nth>]:<{'|'.join(ACTIONS)}>")
    return Fault(step, int(nth), action)


class _Armed:
    """A fault that has not happened yet in this process."""

    def __init__(self, fault: Fault, mark: str | None) -> None:
        self._fault = fault
        self._mark = mark
        self._lock = threading.Lock()
        self._left = fault.nth

    def reach(self, step: str) -> None:
        if step != self._fault.step:
            return
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due and self._is_ours(step):
            if self._fault.action == "raise":
                raise InjectedFault(step)
            os.kill(os.getpid(), signal.SIGKILL if self._fault.action == "kill" else signal.SIGSTOP)

    def _is_ours(self, step: str) -> bool:
        if self._mark is None:
            return True
        try:
            descriptor = os.open(self._mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        os.write(descriptor, f"{step} {os.getpid()}\n".encode())
        os.close(descriptor)
        return True


_armed: _Armed | None = None


def reach(step: str) -> None:
    """Says that `step` has been reached. Raises InjectedFault if that is the armed fault's action."""
    if _armed is not None:
        _armed.reach(step)


def arm(fault: str, mark: str | None = None) -> None:
    """Arms a fault in this process, as SPARKLOG_FAULT does at the import. Raises ValueError."""
    global _armed
    _armed = _Armed(parse_fault(fault), mark)


def disarm() -> None:
    """Nothing happens any more."""
    global _armed
    _armed = None


if VARIABLE in os.environ:
    arm(os.environ[VARIABLE], os.environ.get(VARIABLE_MARK))
