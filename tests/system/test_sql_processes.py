"""Sessions of SQL at the end of a process, in its threads, and in a forked child."""

from __future__ import annotations

import subprocess
import sys

from sparklog.client.local import LocalBroker


def test_a_daemon_thread_ends_its_statements_with_the_process(broker: LocalBroker) -> None:
    """Before, a thread that was inside DuckDB, or dropped a connection, could abort the process at its end."""
    code = (
        "import atexit, sys, threading\n"
        "begun, ended = threading.Event(), threading.Event()\n"
        "atexit.register(lambda: print(ended.wait(30)))  # runs after the function of sparklog\n"
        "import sparklog\n"
        "from sparklog.errors import ClosedError, QueryCancelledError\n"
        "def run():\n"
        "    while True:\n"
        "        try:\n"
        "            with sparklog.SqlSession(sys.argv[1]) as session:\n"
        "                for _ in session.execute('FROM range(1_000_000)'): begun.set()\n"
        "        except QueryCancelledError: pass\n"
        "        except ClosedError as e: return ended.set() if str(e) == 'the process ends' else None\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "begun.wait()\n"
        "sys.exit(8)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, broker.bootstrap_servers],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (8, "True\n", "")


def test_a_forked_child_cannot_use_the_session_of_its_parent(broker: LocalBroker) -> None:
    code = (
        "import os, sys, sparklog\n"
        "from sparklog.errors import ClosedError\n"
        "def reason(call):\n"
        "    try: call()\n"
        "    except ClosedError as e: return str(e)\n"
        "session = sparklog.SqlSession(sys.argv[1])\n"
        "result = session.execute('FROM range(1_000_000)')\n"
        "first = next(iter(result)).num_rows\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(reason(lambda: next(iter(result))), reason(lambda: session.execute('SELECT 1')), sep='\\n', flush=True)\n"
        "    result.close(); session.close(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(first + sum(b.num_rows for b in result))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, broker.bootstrap_servers], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout.splitlines(), ran.stderr) == (
        [
            "this result belongs to the parent process: create a SqlSession in the child",
            "this SqlSession belongs to the parent process: create one in the child",
            "1000000",
        ],
        "",
    )


def test_sessions_end_before_duckdb() -> None:
    """DuckDB's own functions at the end of a process make the calls of daemon threads fail."""
    code = (
        "import atexit\n"
        "order, register = [], atexit.register\n"
        "def registered(function, *rest, **named):\n"
        "    order.append(getattr(function, '__name__', ''))\n"
        "    return register(function, *rest, **named)\n"
        "atexit.register = registered\n"
        "import sparklog\n"
        "sparklog.SqlSession('127.0.0.1:1').close()\n"
        "duckdb = len(order)\n"
        "sparklog.SqlSession('127.0.0.1:1').close()\n"
        "print(order[-1], order.count('_close_at_exit'), duckdb == len(order))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("_close_at_exit 1 True\n", "")
