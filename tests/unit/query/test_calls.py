"""Calls of DuckDB at the end of the process."""

from __future__ import annotations

import threading

import pytest

from sparklog.errors import ClosedError
from sparklog.query.calls import Calls


def test_calls_end_with_the_process() -> None:
    calls, inside, interrupted = Calls(), threading.Event(), threading.Event()
    said: list[str] = []

    def run() -> None:
        with calls:
            inside.set()
            interrupted.wait(60)
        try:
            with calls:
                pass
        except ClosedError as e:
            said.append(str(e))

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait(60)
    calls.end(lambda: None, 0)  # it does not wait longer
    calls.end(interrupted.set, 60)
    thread.join(60)
    assert said == ["the process ends"]
    with calls:  # the main thread closes what is left
        pass
    calls.reset()
    with pytest.raises(ValueError), calls:
        raise ValueError
    calls.end(lambda: pytest.fail("no call runs"), 60)
