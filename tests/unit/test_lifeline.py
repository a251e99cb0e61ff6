"""The pipe to a child process, and forks that happen around it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import concurrent.futures.thread, logging, os  # these have hooks of the same kind
os.register_at_fork(before=lambda: __import__("sparklog.environment.lifeline"))
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
from sparklog.environment.lifeline import Lifeline
Lifeline().cut()
"""


def test_the_module_can_be_imported_while_another_thread_forks() -> None:
    """PySpark starts Java with a function to run before the program: with a fork whose hooks run."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
