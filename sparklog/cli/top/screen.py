"""The live screen: samples and keys change a state, and the state is drawn.

A separate thread takes the samples, so that the screen reacts to keys while a broker does not answer.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, NamedTuple

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

from sparklog.cli.top.rates import Model, Order, model
from sparklog.cli.top.samples import Snapshot
from sparklog.cli.top.tables import render
from sparklog.errors import SparklogError

KEYS = {"l": Order.lag, "r": Order.rate, "s": Order.size, "n": Order.name}
QUIT = ("q", "Q", "\x04")
HELP = "q quits; l r s n: by lag, rate, size, name"
KEY_WAIT_S = 0.1


class Failure(NamedTuple):
    """A failed attempt to take a sample."""

    message: str
    at_s: float
    """Monotonic time of the failure, in s."""


class State(NamedTuple):
    """The state of the screen."""

    order: Order
    before: Snapshot | None = None
    """The sample before `now`; None if there is none, or if the attempt before `now` failed."""
    now: Snapshot | None = None
    """The newest sample."""
    failure: Failure | None = None
    """The newest failure; None if a sample followed it."""
    failing_since_s: float = 0.0
    """Monotonic time of the first failure since the newest sample, in s."""
    ended: bool = False


def after(state: State, event: Snapshot | Failure | str) -> State:
    """Return the state after a sample, a failure or a key."""
    if isinstance(event, str):
        if event in QUIT:
            return state._replace(ended=True)
        return state._replace(order=KEYS.get(event.lower(), state.order))
    if isinstance(event, Failure):
        since_s = event.at_s if state.failure is None else state.failing_since_s
        return state._replace(failure=event, failing_since_s=since_s)
    # no rates over a gap: they would be means of a time that was not observed
    before = None if state.failure is not None else state.now
    return state._replace(before=before, now=event, failure=None)


def drawn(state: State, size: ConsoleDimensions) -> RenderableType:
    """Return the content of the screen for a terminal of this size."""
    problem = ""
    if state.failure is not None:
        problem = (
            f"no answer for {state.failure.at_s - state.failing_since_s:.0f} s, still trying: {state.failure.message}"
        )
    if state.now is None:
        return Text(problem or "asking the cluster …", "red" if problem else "")
    return render(current(state), state.order, room=size, problem=problem, hint=HELP)


def current(state: State) -> Model:
    """Return the rows and rates of a state; `state.now` must not be None."""
    assert state.now is not None
    return model(state.before, state.now)


class SampleThread:
    """Calls `take` every `interval_s` seconds in a thread.

    `events` holds only the newest sample or failure, so that a slow screen skips old samples.
    """

    def __init__(self, take: Callable[[], Snapshot], interval_s: float, now_s: Callable[[], float]) -> None:
        self.events: queue.Queue[Snapshot | Failure | BaseException] = queue.Queue(maxsize=1)
        self._take = take
        self._interval_s = interval_s
        self._now_s = now_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparklog-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples. The call does not wait for a sample in progress."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = self._now_s()
            event: Snapshot | Failure | BaseException
            try:
                event = self._take()
            except SparklogError as e:
                event = Failure(str(e), self._now_s())
            except Exception as e:  # noqa: BLE001 - a defect: the screen's thread raises it
                event = e
            with contextlib.suppress(queue.Empty):
                self.events.get_nowait()
            with contextlib.suppress(queue.Full):
                self.events.put_nowait(event)
            self._stop.wait(max(0.0, self._interval_s - (self._now_s() - began_s)))


def run_screen(
    console: Console,
    keys: IO[str],
    take: Callable[[], Snapshot],
    interval_s: float,
    order: Order,
    now_s: Callable[[], float],
) -> None:
    """Draw samples until the key `q`, SIGTERM or Ctrl-C, and then restore the terminal. Raises KeyboardInterrupt after
    Ctrl-C, and SystemExit after SIGTERM or SIGHUP."""
    samples = SampleThread(take, interval_s, now_s)
    state = State(order)
    with (
        _ended_by_signal(),
        _single_keys(keys),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        samples.start()
        size = None
        try:
            while not state.ended:
                events = [*_wait_for_samples(samples), *_typed_keys(keys)]
                for event in events:
                    state = after(state, event)
                if events or console.size != size:
                    size = console.size
                    live.update(drawn(state, size), refresh=True)
        finally:
            samples.stop()


def _wait_for_samples(samples: SampleThread) -> Iterator[Snapshot | Failure]:
    try:
        event = samples.events.get_nowait()
    except queue.Empty:
        return
    if isinstance(event, BaseException):
        raise event
    yield event


def _typed_keys(keys: IO[str]) -> Iterator[str]:
    """Wait at most KEY_WAIT_S for keys, and yield them."""
    if select.select([keys], [], [], KEY_WAIT_S)[0]:
        yield from os.read(keys.fileno(), 64).decode("utf-8", "replace") or QUIT  # no bytes: the terminal is closed


@contextlib.contextmanager
def _single_keys(keys: IO[str]) -> Iterator[None]:
    """Switch the terminal to keys without Enter and without echo. Ctrl-C still interrupts."""
    was = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, was)


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP, so that the terminal is restored before the process ends."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
