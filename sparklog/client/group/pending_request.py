"""A request on a thread of its own, while the requesting thread continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sparklog.client.net.background import daemon_thread

T = TypeVar("T")


class PendingRequest(Generic[T]):
    """One request. `ask()` runs on a thread of its own, and then `on_answer()`; from then on `answer` returns the
    outcome."""

    def __init__(self, ask: Callable[[], T], on_answer: Callable[[], object]) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._answer: T | None = None
        self._error: Exception | None = None
        self.is_answered = False
        daemon_thread(self._run, "sparklog-question").start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as e:  # noqa: BLE001  `answer` raises it
            self._error = e
        self.is_answered = True
        self._on_answer()

    def answer(self) -> T | None:
        """Return the answer. Call it only if `is_answered` is True. Raises the error of `ask`."""
        if self._error is not None:
            raise self._error
        return self._answer
