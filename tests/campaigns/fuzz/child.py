"""A reader in a process of its own, which handles case after case and is started again only after its death.

The child answers each call with a value, a typed error (`sparklog.errors`), or a fault: any other exception. Its death,
a timeout or too much memory is an answer, too.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import selectors
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
_LENGTH = struct.Struct("<I")
HEADROOM_BYTES = 3 << 30
"""Address space beyond that of the process when it is ready."""
GROWTH_BYTES_MAX = 400 << 20
"""Of memory really used for one case of a few kilobytes."""
PATIENCE_S = 120.0
"""A case takes milliseconds, the start of a process a second; the machine may be busy."""

_MAIN = "from tests.campaigns.fuzz.child import main; main()"

VALUE, TYPED, UNTYPED, DIED, HUNG, MEMORY, NOISE = "value", "typed", "untyped", "died", "hung", "memory", "noise"


class Answer(NamedTuple):
    """Outcome of a call. `kind`: one of the constants above; `text` explains it."""

    kind: str
    value: Any
    text: str = ""

    @property
    def is_as_it_should(self) -> bool:
        return self.kind in (VALUE, TYPED)


class Child:
    """The parent's side. `target` is "module:function"; it is called with the arguments of `call`."""

    def __init__(self, target: str, work_dir: Path, patience_s: float = PATIENCE_S) -> None:
        self._target = target
        self.patience_s = patience_s
        self._directory = work_dir
        self._stderr_path = work_dir / f"{target.rpartition(':')[2]}.stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self._read_of_stderr = 0
        self.starts = 0

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self._stderr_path.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, self._target, str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                # memory that nobody has written is not zero: what is invented is seen
                env=os.environ | {"MALLOC_PERTURB_": "165", "ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
        self._process = process
        return process

    def call(self, *arguments: Any) -> Answer:
        """Asks the child; starts it if need be."""
        process = self._process if self._process is not None else self._start()
        assert process.stdin is not None
        request = pickle.dumps(arguments)
        try:
            process.stdin.write(_LENGTH.pack(len(request)) + request)
            process.stdin.flush()
            answer: Answer = pickle.loads(self._receive(process))
        except (BrokenPipeError, EOFError):
            return Answer(DIED, None, f"the process ended with {_ended(self.stop())}\n{self._stderr_tail()}")
        except TimeoutError:
            process.send_signal(signal.SIGABRT)  # faulthandler writes where it was
            self.stop()
            return Answer(HUNG, None, f"no answer within {self.patience_s} s\n{self._stderr_tail()}")
        noise = self._stderr_tail()
        if answer.is_as_it_should and "Traceback" in noise:
            return Answer(NOISE, None, noise)
        return answer

    def _receive(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        deadline = time.monotonic() + self.patience_s
        data = bytearray()
        wanted = _LENGTH.size
        length = -1
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(data) < wanted:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise EOFError
                data += piece
                if length < 0 and len(data) >= _LENGTH.size:
                    (length,) = _LENGTH.unpack_from(data)
                    wanted += length
        return bytes(data[_LENGTH.size :])

    def _stderr_tail(self) -> str:
        """Return the output since the last call."""
        if self._stderr_path.stat().st_size <= self._read_of_stderr:
            return ""
        with self._stderr_path.open("rb") as file:
            file.seek(self._read_of_stderr)
            text = file.read()
        self._read_of_stderr += len(text)
        return text.decode(errors="replace")[-6000:]

    def stop(self) -> int:
        """Ends the process; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        for pipe in (process.stdin, process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            return process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# --- the child's side ---


def _memory_bytes(field: str) -> int:
    """VmHWM, VmRSS or VmSize of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def limit_memory(headroom_bytes: int = HEADROOM_BYTES) -> None:
    """Bounds this process's address space."""
    limit = _memory_bytes("VmSize") + headroom_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer_to(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    from sparklog.errors import SparklogError, UnknownServerError

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory_bytes("VmRSS")
    try:
        answer = Answer(VALUE, function(*arguments))
    except UnknownServerError:
        answer = Answer(UNTYPED, None, traceback.format_exc())
    except SparklogError as e:
        answer = Answer(TYPED, None, f"{type(e).__name__}: {e}")
    except BaseException:  # noqa: BLE001  # that there is none is what is tested
        answer = Answer(UNTYPED, None, traceback.format_exc())
    grown = _memory_bytes("VmHWM") - before
    if grown > GROWTH_BYTES_MAX and answer.is_as_it_should:
        return Answer(MEMORY, None, f"{grown >> 20} MiB for one case ({answer.kind} {answer.text})")
    return answer


def main() -> None:
    """Answers calls until there are no more."""
    import faulthandler

    faulthandler.enable()
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    pipe_in, pipe_out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a target prints by mistake is no answer
    os.chdir(sys.argv[2])
    limit_memory()
    while head := pipe_in.read(_LENGTH.size):
        arguments = pickle.loads(pipe_in.read(_LENGTH.unpack(head)[0]))
        data = pickle.dumps(_answer_to(function, arguments))
        pipe_out.write(_LENGTH.pack(len(data)) + data)
        pipe_out.flush()
    os._exit(0)  # threads of a client that was left behind do not keep it
