"""Workers in the foreground: their log, signals and end, for `sparklog lake run` and `sparklog mirror run`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"


class Worker(Protocol):
    """A worker that shares topics with other workers."""

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def run(self) -> None: ...

    def run_once(self, names: Sequence[str] | None) -> Mapping[str, str]: ...


def run_worker(
    create: Callable[[], Worker], names: Sequence[str] | None, *, once: bool, end_with_parent: bool
) -> Mapping[str, str]:
    """Run a worker until a signal, or with `once` until it has worked once on `names` (None: all). Returns the errors
    by name. Raises SparklogError."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    worker = create()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    if end_with_parent:
        _stop_with_parent(worker.stop)
    try:
        if once:
            return worker.run_once(names)
        worker.run()
        return {}
    finally:
        worker.close()


def _stop_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop` when stdin ends. The broker that started this worker holds the other end of the pipe."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=wait, name="sparklog-lifeline", daemon=True).start()
