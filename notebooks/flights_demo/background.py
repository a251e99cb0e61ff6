"""Blocking calls off the main thread, so that Ctrl-C is answered at once, whatever is being waited for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from . import interrupts

T = TypeVar("T")
_TICK_S = 0.1


class Call(Generic[T]):
    """One call that another thread makes. `result` waits for it and gives its value or raises its error."""

    def __init__(self, call: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._call = call
        self._args = args
        self._done = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Makes the call; for the thread that does it."""
        try:
            self._value = self._call(*self._args)
        except BaseException as e:  # noqa: BLE001 - raised by result(), in the thread that waits
            self._error = e
        finally:
            self._done.set()

    def result(self, tick: Callable[[], object] | None = None) -> T:
        """Waits for the end, calling `tick` ten times a second meanwhile. Raises KeyboardInterrupt at Ctrl-C."""
        interrupts.check()
        while not self._done.wait(_TICK_S):
            interrupts.check()
            if tick is not None:
                tick()
        if self._error is not None:
            raise self._error
        return self._value


def in_background(call: Callable[..., T], *args: Any) -> Call[T]:
    """Makes a call in a thread of its own."""
    made = Call(call, args)
    threading.Thread(target=made.run, name="demo-call", daemon=True).start()
    return made


class Worker:
    """A thread that makes one call after the other.

    Spark gets all its calls from one thread: it knows the "active session" only in the thread that made the session,
    and a streaming write that is started in another one does not find data sources written in Python.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, call: Callable[..., T], *args: Any) -> Call[T]:
        """Queues a call."""
        made = Call(call, args)
        self._calls.put(made)
        return made

    def _work(self) -> None:
        while True:
            self._calls.get().run()
