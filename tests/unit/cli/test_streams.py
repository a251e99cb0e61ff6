"""Standard streams that are closed, full, not UTF-8, or a pipe that nobody reads: for the help of every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.seeds import SEED_BASE

EVERY_HELP = """
import contextlib, io, os, sys, warnings
warnings.simplefilter("ignore")  # of the fork
import typer
from sparklog.cli.app import app
from sparklog.cli.main import run

def commands(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))

def end_in(stdout, arguments):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 2)
        if stdout == "closed":
            os.close(1)
            sys.stdout = None
        elif stdout == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        elif stdout == "read by nobody":
            ends = os.pipe()
            os.dup2(ends[1], 1)
            os.close(ends[0]); os.close(ends[1])
        else:
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        sys.argv = ["sparklog", *arguments]
        try:
            run()
        except SystemExit as e:
            code = e.code or 0
            try:
                sys.stdout.flush()
            except OSError as e:
                code = 120
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 99
        os._exit(code)
    os.close(write)
    text = open(read, "rb").read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text

kind, every, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["--help"], prog_name="sparklog")  # or each child would import the libraries of the help
for path in list(commands(typer.main.get_command(app)))[first::every]:
    code, text = end_in(kind, [*path, "--help"])
    print(code, "|".join((" ".join(path), repr(text))))
"""

REFUSED = "error: standard output cannot be written: "


def ends(kind: str, every: int, first: int = 0) -> list[tuple[str, str, str]]:
    """Exit code, path and stderr of every n-th command from number `first` on.

    The commands are called with `--help` and standard output of this kind.
    """
    given = dict(os.environ) | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    arguments = [kind, str(every), str(first)]
    command = [sys.executable, "-c", EVERY_HELP, *arguments]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        code, rest = line.split(" ", 1)
        name, text = rest.split("|", 1)
        found.append((code, name, text))
    assert len(found) > 50 // every
    return found


ENDS = {
    # An error of the encoding would come before that of the disk, so one round is of both.
    "full": ("1", repr(REFUSED + "No space left on device\n")),
    "closed": ("1", repr(REFUSED + "Bad file descriptor\n")),
    "read by nobody": ("0", "''"),
    "ascii": ("0", "''"),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_help_ends_cleanly() -> None:
    """Some commands of all; the others in the nightly run."""
    for kind, expected in ENDS.items():
        every = 16 if kind == "full" else 32
        assert [end for end in ends(kind, every) if (end[0], end[2]) != expected] == [], kind


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_every_help_ends_cleanly() -> None:
    """Each kind of output with a quarter of the commands, another quarter after each day."""
    day = SEED_BASE // 1_000
    for number, (kind, expected) in enumerate(ENDS.items()):
        found = ends(kind, len(ENDS), (day + number) % len(ENDS))
        assert [end for end in found if (end[0], end[2]) != expected] == [], kind


def test_characters_unfit_for_standard_output_are_escaped() -> None:
    environment = dict(os.environ) | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "sparklog.cli", "consume", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.isascii() and b"\\u2026" in done.stdout


def test_a_path_that_is_not_utf8_is_refused_by_the_broker(tmp_path: Path) -> None:
    command = [os.fsencode(sys.executable), b"-m", b"sparklog.cli", b"broker", b"--listen", b"127.0.0.1:0"]
    command += [b"--data-dir", os.fsencode(tmp_path) + b"/\xff"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: data.dir = ") and "is not UTF-8" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


def test_a_path_that_is_too_long_is_refused_by_every_tool(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    for arguments in (["broker", "--listen", "127.0.0.1:0", "--data-dir"], ["log", "verify"], ["doctor", "--data-dir"]):
        command = [sys.executable, "-m", "sparklog.cli", *arguments, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, arguments
        assert "Traceback" not in done.stderr and "File name too long" in done.stderr.splitlines()[-1], arguments
