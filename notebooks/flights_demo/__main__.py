"""The demo's command line: `python notebooks/flights_demo [options]`."""

from __future__ import annotations

import signal

# until there is something to stop, Ctrl-C simply ends the program, without a traceback from the middle of an import
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flights_demo import steps

EXIT_CANNOT_RUN = 2
YEAR_S = {1: 20.0, 3: 60.0}

if not __package__:  # run as a directory: make its modules a package all the same
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    __package__ = "flights_demo"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(
        prog="flights_demo",
        description="Feeds every flight of 2013 from New York into a sparklog broker while Spark aggregates the departure "
        "delay per airport and hour into another topic and a Delta table; then verifies every row against PyArrow.",
        epilog="Exit status: 0 all checks hold, 1 a check failed, 2 the demo could not run, 130 interrupted.",
    )
    parser.add_argument("--rows", type=_positive, metavar="N", help="only the first N flights (default: all 336,776)")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="feed a whole year in S seconds; 0: as fast as it goes (default: 20, with several brokers 60)",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        choices=(1, 3),
        help="3: three brokers and a ZooKeeper, which die and come back while the flights stream (default: 1)",
    )
    parser.add_argument("--no-delta", action="store_true", help="write the table as Parquet; needs no download")
    parser.add_argument(
        "--keep", action="store_true", help="at the end leave the broker running until Ctrl-C, to look around"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where everything goes; replaced by the next run (default: demo-output)",
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text.replace(",", "").replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main(argv: list[str] | None = None) -> int:
    """Runs the demo and gives the exit status."""
    given = arguments(argv)
    try:
        from flights_demo import interrupts, steps
    except ModuleNotFoundError as e:
        return _cannot(f"{e}: run `make demo`, or pip install 'sparklog[demo]'")
    interrupts.install()
    try:
        return _run(steps.Options(**_options(given)))
    except KeyboardInterrupt:
        print("interrupted: everything the demo started has been stopped", file=sys.stderr)
        return interrupts.exit_status()


def _options(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "output": given.output.resolve(),
        "rows": given.rows,
        "year_s": YEAR_S[given.brokers] if given.seconds is None else max(0.0, given.seconds),
        "brokers": given.brokers,
        "delta": not given.no_delta,
        "keep": given.keep,
    }


def _run(options: steps.Options) -> int:
    from flights_demo import interrupts, steps
    from flights_demo.data import DataMissingError
    from flights_demo.jvm import JavaMissingError, JvmStartError
    from flights_demo.outages import OutageError
    from flights_demo.query import QueryFailedError
    from sparklog import SparklogError

    try:
        return steps.Demo(options).run()
    except (DataMissingError, JavaMissingError, JvmStartError, OutageError, QueryFailedError, steps.DemoBusyError) as e:
        interrupts.check()  # the signal has ended a process that was starting
        return _cannot(str(e))
    except SparklogError as e:
        interrupts.check()
        return _cannot(f"{type(e).__name__}: {e}")


def _cannot(message: str) -> int:
    print(f"the demo cannot go on: {message}", file=sys.stderr)
    return EXIT_CANNOT_RUN


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # everything is stopped; a thread that an interrupt left in the middle of a call must not hold up the exit
    os._exit(status)
