"""Child processes of a broker: their restarts, their log, and their end with the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from sparklog_broker.children.child import LINE_BYTES_MAX, Child, ChildSpec
from sparklog_broker.children.children import Children
from sparklog_broker.children.kafka_gateway import restarts as gateway_restarts
from sparklog_broker.children.restarts import (
    EXIT_USAGE,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    STEADY_S,
    LineLimit,
    Restarts,
)

from tests.support.waiting import until

SERVES = "import sys; print('listening on 1.2.3.4:5', flush=True); sys.stdin.read()"


def test_pauses_double_up_to_a_limit_and_begin_again_after_a_steady_run() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_s(1, 1.0) for _ in range(12)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert restarts.pause_s(-9, STEADY_S) == FIRST_PAUSE_S
    assert restarts.count == 13


def test_a_gateway_that_ends_often_is_away_for_less_than_a_session_of_a_group_member() -> None:
    """Else its clients lose their places in groups, and their messages and transactions time out."""
    restarts, session_s_min = gateway_restarts(), 6.0
    assert max(restarts.pause_s(-9, 1.0) or 0.0 for _ in range(12)) < session_s_min


def test_a_wrong_configuration_is_not_tried_again() -> None:
    assert Restarts().pause_s(EXIT_USAGE, 0.1) is None


def test_lines_beyond_the_rate_are_counted_and_dropped() -> None:
    limit = LineLimit(lines_per_s=2, burst=3)
    assert [limit.admit(0.0).is_written for _ in range(5)] == [True, True, True, False, False]
    admitted = limit.admit(0.5)
    assert (admitted.is_written, admitted.suppressed) == (True, 2)
    assert limit.admit(1.0).suppressed == 0


def run(program: str, body: Callable[[Child], Awaitable[None]]) -> list[str]:
    """Runs a child with `program` while `body` looks on. Returns what it has said when ready."""
    ready: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        child = Child(
            ChildSpec("worker", (sys.executable, "-c", program), stop_timeout_s=5.0),
            loop,
            time.monotonic,
            restarts=Restarts(0.001, 0.001),
            on_ready=ready.append,
        )
        children = Children()
        children.add(child)
        children.start()
        try:
            await body(child)
        finally:
            await children.stop()
        assert child.pid is None and not child.is_ready

    asyncio.run(asyncio.wait_for(main(), 60))
    return ready


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_killed_child_is_started_again() -> None:
    async def body(child: Child) -> None:
        await eventually(lambda: child.is_ready)
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: child.is_ready and child.pid != first)
        assert child.restarts.count == 1

    assert run(SERVES, body) == ["1.2.3.4:5", "1.2.3.4:5"]


def test_a_child_that_ignores_the_stop_is_killed_with_its_own_children() -> None:
    program = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('listening on x', flush=True)\ntime.sleep(600)"
    )
    pids: list[int] = []

    async def body(child: Child) -> None:
        child.spec = ChildSpec(child.spec.name, child.spec.command, stop_timeout_s=0.1)
        await eventually(lambda: child.is_ready)
        assert child.pid is not None
        pids.append(child.pid)

    run(program, body)
    until(lambda: subprocess.run(["ps", "-s", str(pids[0])], capture_output=True).returncode != 0)


def test_lines_of_the_child_are_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    program = (
        "import sys; sys.stderr.write('WARNING disk is slow\\nplain\\n' + 'x' * 40_000 + '\\nlast'); sys.stderr.flush();"
        + SERVES
    )
    caplog.set_level(logging.INFO)

    async def body(child: Child) -> None:
        await eventually(lambda: child.is_ready and any("x" in r.getMessage()[:1] for r in caplog.records))

    run(program, body)
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "sparklog_broker.children.worker"]
    assert ("WARNING", "disk is slow") in said
    assert ("INFO", "plain") in said and ("INFO", "last") in said
    parts = [message for _, message in said if message.startswith("x")]
    assert sum(map(len, parts)) == 40_000 and max(map(len, parts)) <= LINE_BYTES_MAX


def test_a_wrong_configuration_ends_the_restarts(caplog: pytest.LogCaptureFixture) -> None:
    async def body(child: Child) -> None:
        await eventually(lambda: "wrong configuration" in caplog.text)

    run(f"raise SystemExit({EXIT_USAGE})", body)


PARENT = """
import asyncio, sys, time
from sparklog_broker.children.child import Child, ChildSpec
async def main():
    child = Child(ChildSpec("worker", (sys.executable, "-c", sys.argv[1])), asyncio.get_running_loop(), time.monotonic,
                  on_ready=lambda _: print(child.pid, flush=True))
    child.start()
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_child_ends_with_a_broker_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, SERVES], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_numbers_of_a_child_go_on_over_its_restarts() -> None:
    program = "print('count lost 2'); print('count other x'); print('count lost 3', flush=True)"

    async def body(child: Child) -> None:
        while child.restarts.count < 3:
            await asyncio.sleep(0.01)
        assert child.counts["lost"] % 3 == 0 and child.counts["lost"] >= 9
        assert "other" not in child.counts

    run(program, body)
