"""Runs the coroutine that answers a request, without a task of its own.

Most requests never wait. One that does (a fetch for data, a produce for a disk) goes on in the turn of the event loop after
what it waited for; a task would end one turn later still, and cost twice as much. asyncio's rules for whoever awaits a
future hold here too: the coroutine yields the future, is resumed when that is done, and is cancelled through it. There is
no current task, so `asyncio.timeout` cannot be used in a handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Wakeup(asyncio.Future[T]):
    """What a request waits for when whoever ends the wait may let it go on at once."""

    resume: Callable[[asyncio.Future[Any]], None] | None = None

    def set_result_now(self, result: T) -> None:
        """The request has gone on, up to where it waits again, when this returns. Others than requests go on in the loop's
        next turn."""
        resume, self.resume = self.resume, None
        if resume is not None:
            self.remove_done_callback(resume)
        self.set_result(result)
        if resume is not None:
            try:
                resume(self)
            except Exception as e:  # noqa: BLE001 - as from a callback of the loop: no business of whoever ends the wait
                self.get_loop().call_exception_handler({"message": "a request failed to go on", "exception": e})


class RunningRequest(Generic[T]):
    """`on_end(result, error)` is called once: within `start`, or later on the event loop. After `cancel` the error is the
    CancelledError, unless the coroutine was at its end."""

    __slots__ = ("_cancelled", "_loop", "_on_end", "_waits_for", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._work = work
        self._loop = loop
        self._on_end = on_end
        self._waits_for: asyncio.Future[Any] | None = None
        self._cancelled = False

    def start(self) -> None:
        """Runs it up to where it has to wait, or to its end."""
        self._go_on()

    def cancel(self) -> None:
        """Raises CancelledError where it waits, in a later turn of the loop."""
        self._cancelled = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    def _go_on(self, _: object = None) -> None:
        self._waits_for = None
        try:
            if self._cancelled:
                self._cancelled = False  # said once: what it does to clean up may wait
                waits_for = self._work.throw(asyncio.CancelledError())
            else:
                waits_for = self._work.send(None)
        except StopIteration as end:
            self._on_end(end.value, None)
        except (Exception, asyncio.CancelledError) as e:  # noqa: BLE001 - told to who started it
            self._on_end(None, e)
        else:
            if waits_for is None:  # asyncio.sleep(0)
                self._loop.call_soon(self._go_on)
                return
            self._waits_for = waits_for
            waits_for.add_done_callback(self._go_on)
            if isinstance(waits_for, Wakeup):
                waits_for.resume = self._go_on
            if self._cancelled:  # meanwhile, by itself
                waits_for.cancel()
