"""The one thread that may be inside a consumer's calls, and how other threads end the call that it waits in.

A consumer has positions and records in hand that belong to one call at a time. A second thread is refused at once, as
by Kafka's clients: a lock would let it in, and it would get another part of the records in no order.
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
    """The calls of one consumer. Entering and leaving takes no lock: both are done by every call."""

    def __init__(self) -> None:
        self._inside: dict[str, list[int]] = {}
        """The outermost call that runs, as a list with its thread's id. `setdefault` is atomic."""
        self._call_ended: threading.Event | None = None
        """Set when a call ends, while `close` of another thread waits for that."""
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
        """End the wait of the call that runs or, if none waits, of the next call that does."""
        self._signal.set()

    def enter_to_close(self, call: list[int], wake: Callable[[], None], timeout_s: float) -> None:
        """Enter as `enter` does, for a close: first the call of another thread ends, with ClosedError if it waits.
        `wake` ends its wait. Raises ConcurrentModificationError if that call continues for longer than `timeout_s`."""
        until = time.monotonic() + timeout_s
        while (held := self._inside.setdefault("call", call))[0] != call[0]:
            left = self._call_ended = threading.Event()
            self.is_closing = True
            self._signal.set()
            wake()
            # the call may have ended before `_call_ended` was there
            if self._inside.get("call") is held and not left.wait(max(0.0, until - time.monotonic())):
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
    """Return the method, refused with ConcurrentModificationError while another thread is inside a call of the same
    object, and with ClosedError when the object is closed. A callback that runs inside a call may call the object."""

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
