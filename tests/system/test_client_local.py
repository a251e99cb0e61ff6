"""`start_local`: the daemon's life."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import BrokerNotAvailableError


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def test_a_temporary_directory_goes_with_the_broker() -> None:
    with sparklog.start_local() as broker:
        assert broker.running and alive(broker.pid) and broker.data_dir.is_dir()
        assert sparklog.Admin(broker.bootstrap_servers).list_topics() == []
    assert not broker.running and not alive(broker.pid) and not broker.data_dir.exists()
    assert broker.stop() == 0  # again is fine


def test_a_given_directory_stays(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data") as broker:
        sparklog.Admin(broker.bootstrap_servers).create_topic("kept", partitions=2)
    with sparklog.start_local(tmp_path / "data") as broker:
        assert sparklog.Admin(broker.bootstrap_servers).describe_topic("kept").partitions == 2


def test_the_brokers_own_words_when_it_does_not_start(tmp_path: Path) -> None:
    with (
        sparklog.start_local(tmp_path / "data"),
        pytest.raises(BrokerNotAvailableError, match="did not start") as caught,
    ):
        sparklog.start_local(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)", "raise RuntimeError"])
def test_it_does_not_outlive_its_program(end: str) -> None:
    script = f"""
        import os, signal, sys, sparklog
        broker = sparklog.start_local()
        print(broker.pid, flush=True)
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    pid = int(done.stdout.split()[0])
    until(lambda: not alive(pid))
