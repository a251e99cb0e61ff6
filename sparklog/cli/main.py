"""The entry point `sparklog`.

`sparklog broker` with plain options starts the broker without the libraries of the command line (typer, rich), which
need memory and start time. All other command lines, also `sparklog broker --help`, run through `sparklog.cli.app`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sparklog.environment.imports import keep_pandas_out
from sparklog.environment.streams import prepare

BROKER_OPTIONS = (
    "--config", "--data-dir", "--listen", "--broker-id", "--zookeeper", "--rack", "--advertised-listener", "--log-level",
)  # fmt: skip


def run() -> None:
    """Run the command line of this process and exit with its code."""
    prepare()
    keep_pandas_out()
    arguments = sys.argv[1:]
    if is_plain_broker(arguments):
        from sparklog_broker.main import main

        sys.exit(main(arguments[1:]))
    from sparklog.cli.app import run_app

    sys.exit(run_app(arguments))


def is_plain_broker(arguments: Sequence[str]) -> bool:
    """True if `arguments` are the word `broker` and options of BROKER_OPTIONS, each with a value."""
    if not arguments or arguments[0] != "broker":
        return False
    rest = list(arguments[1:])
    while rest:
        option, equals, _ = rest.pop(0).partition("=")
        if option not in BROKER_OPTIONS:
            return False
        if not equals and (not rest or rest.pop(0).startswith("-")):
            return False
    return True
