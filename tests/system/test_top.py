"""`sparklog top` against a real broker: printed once, and live in a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from tests.support.cli import COMMAND, Run, cells
from tests.system.broker_process import PATIENCE_S, BrokerProcess, readable

INTERVAL = ("--interval", "200ms")
METRICS = 'metrics.listen = "127.0.0.1:0"\n'


def rows(output: str) -> dict[str, list[str]]:
    """The tables' rows by their first cells."""
    return {cells(line)[0]: cells(line)[1:] for line in output.splitlines() if "│" in line}


def test_once(run: Run, broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 3)
    with Producer(broker.bootstrap_servers, transactional_id=topic) as producer:
        with producer.transaction():
            for i in range(10):
                producer.send(topic, b"x" * 1000, partition=i % 2)
        admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 1})
        read = f"{topic}-read"
        admin.alter_group_offsets(read, {TopicPartition(topic, p): 5 for p in (0, 1)})
        producer.begin_transaction()
        producer.send(topic, b"x", partition=2).result(PATIENCE_S)
        output = run("top", "--once", *INTERVAL, "--sort", "name").stdout
        named = [cells(line) for line in output.splitlines() if cells(line)[0] == topic]
        (of_topic, of_group, of_transaction) = named
        assert of_topic[1:3] == ["3", "0"]
        assert of_topic[4] == "5", "of the group that is further behind: four records and a marker"
        assert of_group[1:5] == ["Empty", "0", "5", "+0"]
        assert rows(output)[read][:3] == ["Empty", "0", "0"], "markers alone are no lag"
        assert of_transaction[1:3] == ["plain", "Ongoing"]
        assert broker.bootstrap_servers in output
        assert "__consumer_offsets" not in output
        assert "__consumer_offsets" in run("top", *INTERVAL, "--internal").stdout, "without a terminal it is once, too"
        producer.abort_transaction()


def test_the_metrics_page_adds_the_brokers_own_figures(run: Run, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings=METRICS, work_dir=tmp_path)
    try:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)
        found = run("top", *INTERVAL, "-b", broker.address, "--metrics", broker.metrics_url).stdout
        assert "in/s" in found
        assert float(rows(found)["0"][2].replace(",", "")) > 0, "requests/s"
        gone = run("top", *INTERVAL, "-b", broker.address, "--metrics", "http://127.0.0.1:1").stdout
        assert "no metrics from http://127.0.0.1:1/metrics" in gone
        assert "t" in rows(gone)
    finally:
        broker.stop()


def test_wrong_usage_and_no_broker(run: Run) -> None:
    assert "0.2 s to" in run("top", "--once", "--interval", "1ms", code=2).stderr
    assert "as in 90s" in run("top", "--once", "--interval", "fast", code=2).stderr
    assert "INVALID_CONFIG" in run("top", "--once", "--metrics", "ftp://x/", code=1).stderr
    assert "BROKER_NOT_AVAILABLE" in run("top", "--once", "-b", "127.0.0.1:1", code=1).stderr


class Screen:
    """`sparklog top` in a terminal of 120 x 30."""

    def __init__(self, address: str) -> None:
        self.terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.before = termios.tcgetattr(inside)
        self.inside = inside
        self.process = subprocess.Popen(
            [*COMMAND, "top", "-b", address, *INTERVAL],
            stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self.output = ""

    def read_until(self, pattern: str) -> str:
        """Return the output up to `pattern`, and forget it."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.output)) is None:
            assert time.monotonic() < deadline, f"{pattern} did not come: {self.output[-3000:]!r}"
            if readable(self.terminal, 0.1):
                self.output += os.read(self.terminal, 65_536).decode("utf-8", "replace")
        drawn, self.output = self.output[: found.end()], self.output[found.end() :]
        return drawn

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def ended(self) -> int:
        """The exit status; the terminal is as it was."""
        self.read_until(re.escape("\x1b[?1049l"))
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self.inside) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.terminal)
        os.close(self.inside)


@pytest.fixture
def screen(broker: LocalBroker) -> Iterator[Screen]:
    made = Screen(broker.bootstrap_servers)
    yield made
    made.close()


def test_keys(screen: Screen, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    screen.read_until(r"by lag; rates over")
    screen.type("n")
    screen.read_until(r"by name; rates over")
    screen.type("q")
    assert screen.ended() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_and_leave_the_terminal_as_it_was(screen: Screen, number: int, code: int) -> None:
    screen.read_until("rates")
    screen.process.send_signal(number)
    assert screen.ended() == code


def test_it_goes_on_when_the_broker_is_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
    screen = Screen(broker.address)
    try:
        screen.read_until(r"rates over")
        broker.stop()
        screen.read_until(r"no answer for \d+ s, still trying")
        broker = BrokerProcess(tmp_path / "data", work_dir=tmp_path, listen=broker.address)
        screen.read_until(r"rates with the next sample")
        screen.read_until(r"rates over")
        screen.type("q")
        assert screen.ended() == 0
    finally:
        screen.close()
        broker.stop()
