"""Runs lives until stopped: `python -m tests.simulation.torture forever | --seconds N | --count N`.

Seeds are taken in order from `--first` on. Each seed runs one life in a kind of each requested world. A violation is
one line with the command that repeats it. Ctrl-C stops; the exit code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.simulation.life import live
from tests.simulation.plans import BROKER_KINDS, CLUSTER_KINDS, kind_of
from tests.simulation.replication_world import World as RulesWorld

PROGRESS_S = 30.0
MESSAGE_CHARS = 300
RULES = "rules"
WORLDS = {"cluster": CLUSTER_KINDS, "broker": BROKER_KINDS, RULES: (RULES,)}
"""Kinds of lives by world."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.simulation.torture", description=__doc__)
    parser.add_argument("how_long", nargs="?", choices=["forever"], help="until Ctrl-C (the default)")
    parser.add_argument("--seconds", type=float, help="until so much time has passed")
    parser.add_argument("--count", type=int, help="until so many lives have been lived")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: drawn from the time)")
    parser.add_argument("--worlds", default="cluster", help=f"of {', '.join(WORLDS)}; several with commas")
    parser.add_argument("--kinds", default="", help="only these kinds of life; several with commas")
    parser.add_argument(
        "--length", type=float, default=1.0, help="of a cluster's or broker's life; 0.2: a fifth as long"
    )
    given = parser.parse_args(arguments)
    first = given.first or int(time.time()) % 1_000_000 * 1_000
    kinds = tuple(filter(None, given.kinds.split(",")))
    campaign = Campaign(_lives(first, tuple(given.worlds.split(",")), kinds), sys.stdout.write, given.length)
    logging.disable(logging.CRITICAL)
    try:
        campaign.run(seconds=given.seconds, count=given.count)
    except KeyboardInterrupt:
        pass
    finally:
        logging.disable(logging.NOTSET)
    campaign.report("end")
    return 1 if campaign.violations else 0


def _lives(first: int, worlds: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield seed and kind, without end."""
    for seed in itertools.count(first):
        for found in [kinds] if kinds else [WORLDS[world] for world in worlds]:
            yield seed, kind_of(seed, found)


def _live(seed: int, kind: str, length: float) -> None:
    if kind == RULES:
        RulesWorld(seed).run()
    else:
        live(seed, kind, length)


def _command(seed: int, kind: str, length: float) -> str:
    """Return the command that repeats a life."""
    if kind == RULES:
        return f"python -c 'from tests.simulation.replication_world import World; World({seed}).run()'"
    return f"python -m tests.simulation.life {seed} {kind} {length}"


class Campaign:
    """Runs and counts lives, and reports them."""

    def __init__(self, lives: Iterator[tuple[int, str]], write: Callable[[str], object], length: float = 1.0) -> None:
        self._lives = lives
        self._write = write
        self._length = length
        self._began_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._lived: Counter[str] = Counter()
        self.violations = 0

    def run(self, *, seconds: float | None = None, count: int | None = None) -> None:
        """Run lives until one of the limits is reached."""
        next_s = self._began_s + PROGRESS_S
        while True:
            now_s = time.monotonic()
            if (seconds is not None and now_s - self._began_s >= seconds) or (
                count is not None and self._lived.total() >= count
            ):
                return
            if now_s >= next_s:
                self.report("so far")
                next_s = now_s + PROGRESS_S
            self._live(*next(self._lives))

    def _live(self, seed: int, kind: str) -> None:
        try:
            _live(seed, kind, self._length)
        except Exception as e:  # noqa: BLE001 - the search continues after any failure
            self.violations += 1
            why = " ".join(str(e).split())[:MESSAGE_CHARS] if isinstance(e, AssertionError) else repr(e)
            self._write(f"VIOLATION {_command(seed, kind, self._length)} : {why}\n")
            sys.stdout.flush()
        self._lived[kind] += 1

    def report(self, what: str) -> None:
        """Print one line of progress."""
        passed_s = max(time.monotonic() - self._began_s, 1e-9)
        cpu_s = time.process_time() - self._cpu_s
        total = self._lived.total()
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self._lived.items()))
        self._write(
            f"{what}: {total} lives in {passed_s:.0f} s ({total / passed_s:.2f}/s, {cpu_s / max(total, 1):.2f} s of "
            f"processor each), {self.violations} violations; {kinds}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # remains of the lives' processes need no clean-up
