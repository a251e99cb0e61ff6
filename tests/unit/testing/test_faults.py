"""Fault hooks: nothing without the variable, exactly the asked-for end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.environment import fault_points as faults
from sparklog.environment.fault_points import InjectedFault, parse_fault, reach
from tests.support.cases import for_each

LOOP = "import sys\nfrom sparklog.environment.fault_points import reach\nfor i in range(5):\n    print(i, flush=True)\n    reach('other')\n    reach('here')\n"


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    faults.disarm()


def child(fault: str, mark: Path | None = None) -> subprocess.Popen[str]:
    variables = os.environ | {faults.VARIABLE: fault} | ({faults.VARIABLE_MARK: str(mark)} if mark else {})
    return subprocess.Popen([sys.executable, "-c", LOOP], env=variables, stdout=subprocess.PIPE, text=True)


def test_unarmed_faults_have_no_effect() -> None:
    reach("here")


def test_raise_happens_once_and_only_at_its_step() -> None:
    faults.arm("here:2:raise")
    reach("here")
    reach("there")
    with pytest.raises(InjectedFault, match="here"):
        reach("here")
    reach("here")


def test_kill_at_the_third_time() -> None:
    process = child("here:3:kill")
    assert process.communicate(timeout=30)[0].split() == ["0", "1", "2"]
    assert process.returncode == -signal.SIGKILL


def test_stop_can_be_continued() -> None:
    process = child("here:stop")
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0].split() == ["0", "1", "2", "3", "4"]
    assert process.returncode == 0


def test_a_mark_makes_it_happen_once_among_processes(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    first = child("here:kill", mark)
    first.communicate(timeout=30)
    assert first.returncode == -signal.SIGKILL
    assert (tmp_path / "mark.here").read_text() == f"{first.pid}\n"
    second = child("here:kill", mark)
    assert len(second.communicate(timeout=30)[0].split()) == 5
    assert second.returncode == 0


@for_each("text", ["", "here", "here:", ":kill", "here:0:kill", "here:x:kill", "here:1:2:kill", "here:die"])
def test_a_wrong_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SPARKLOG_FAULT"):
        parse_fault(text)
