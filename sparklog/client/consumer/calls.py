"""The rule that one thread at a time uses a consumer, and the means by which other threads end a call that waits.

A consumer's positions and its records in hand belong to one call at a time. A second thread is refused at once, as by
Kafka's clients. A lock would let the second thread in later, and each thread would get a part of the records in no
order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sparklog.errors import ClosedError, ConcurrentModificationError, WakeupError

P = ParamSpec("P")
R = TypeVar("R")

_CLOSED = "the consumer is closed"


class Calls:
    """The calls of one consumer. Entering and leaving take no lock, because every call does both."""

    def __init__(self) -> None:
        self._inside: dict[str, list[int]] = {}
        """The outermost call that runs, as a list with its thread's id. `setdefault` is atomic."""
        self._call_ended: threading.Event | None = None
        """Set at the end of the call that runs, if `close` on another thread waits for it."""
        self._signal = threading.Event()
        """Set by `wakeup` or `close` of another thread, to end the present call."""
        self.is_signalled = self._signal.is_set
        """True if the call that runs must not wait any longer."""
        self.is_closing = False
        """True if another thread closes the consumer, or has closed it."""

    def enter(self, call: list[int]) -> None:
        """Enter a call. `call` is a new list with the id of this thread.

        Raises ConcurrentModificationError if another thread is inside.
        """
        held = self._inside.setdefault("call", call)
        if held[0] != call[0]:
            raise ConcurrentModificationError(
                f"the consumer is in use by thread {held[0]}: only one thread at a time may use it; other threads "
                "may only call wakeup() and close()"
            )

    def leave(self, call: list[int]) -> None:
        """Undo `enter`, if `call` was the outermost one."""
        if self._inside.get("call") is call:
            self._inside.clear()
            if self._call_ended is not None:
                self._call_ended.set()

    def wakeup(self) -> None:
        """End the wait of the call that runs or, if it does not wait, of the next call that waits."""
        self._signal.set()

    def enter_to_close(self, call: list[int], wake: Callable[[], None], timeout_s: float) -> None:
        """Enter a call that closes the consumer. A call of another thread ends first: `wake` ends its wait, and the
        call raises ClosedError. Raises ConcurrentModificationError if that call continues for longer than
        `timeout_s`."""
        until = time.monotonic() + timeout_s
        while (held := self._inside.setdefault("call", call))[0] != call[0]:
            ended = self._call_ended = threading.Event()
            self.is_closing = True
            self._signal.set()
            wake()
            # the call may have ended before `_call_ended` was there
            if self._inside.get("call") is held and not ended.wait(max(0.0, until - time.monotonic())):
                raise ConcurrentModificationError(
                    f"the consumer is not closed: thread {held[0]} is still inside a call after {timeout_s:g} s; call "
                    "close() again"
                )

    def check_signal(self) -> None:
        """Raise ClosedError or WakeupError if another thread has ended this call's wait."""
        if not self._signal.is_set():
            return
        if self.is_closing:
            raise ClosedError(_CLOSED)
        self._signal.clear()
        raise WakeupError("another thread has called wakeup()")

    def sleep(self, seconds: float) -> None:
        """Wait between two attempts. Raises as `check_signal`."""
        self._signal.wait(seconds)
        self.check_signal()


class _GuardedConsumer(Protocol):
    _calls: Calls

    def _check_open(self) -> None: ...


S = TypeVar("S", bound=_GuardedConsumer)


def one_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return the method with two checks before it. It raises ConcurrentModificationError while another thread is inside
    a call of the same object, and ClosedError when the object is closed. A callback that runs inside a call is allowed
    to call the object."""

    @wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        calls, call = self._calls, [threading.get_ident()]
        try:  # around `enter`, too: Ctrl-C may come when it returns
            calls.enter(call)
            self._check_open()
            return method(self, *args, **kwargs)
        finally:
            calls.leave(call)

    return guarded
