"""Blocking calls off the main thread, so that Ctrl-C is answered at once, whatever is being waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_TICK_S = 0.1


class Background(Generic[T]):
    """One call in a daemon thread: started by the constructor; `result` waits and gives its value or raises its error."""

    def __init__(self, call: Callable[..., T], *args: Any) -> None:
        self._done = threading.Event()
        self._value: T
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(call, args), name=f"demo-{call.__name__}", daemon=True).start()

    def _run(self, call: Callable[..., T], args: tuple[Any, ...]) -> None:
        try:
            self._value = call(*args)
        except BaseException as e:  # noqa: BLE001 - raised by result(), in the thread that waits
            self._error = e
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, tick: Callable[[], object] | None = None) -> T:
        """Waits for the end, calling `tick` ten times a second meanwhile."""
        while not self._done.wait(_TICK_S):
            if tick is not None:
                tick()
        if self._error is not None:
            raise self._error
        return self._value
