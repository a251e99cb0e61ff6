"""`sparklog top`: the options, and the choice between the live screen and a single output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.durations import parse_seconds
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, timeout_ms
from sparklog.cli.top.rates import Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparklog.cli.top.samples import Snapshot
    from sparklog.environment.clock import MachineClock

EPILOG = """\
**Examples**

`sparklog top`

`sparklog top --sort rate --interval 5s`

`sparklog top --metrics http://127.0.0.1:9293/metrics`

`sparklog top --once | grep billing`

*records/s* counts offsets. *lag* is as in `sparklog group describe`. A broker's metrics page (`metrics.listen`) adds
bytes in and out, requests and connections. Keys: q quits, l, r, s and n sort by lag, rate, size and name.
"""
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.2, 3600.0
SAMPLE_TIMEOUT_MS = 10_000
"""Largest timeout of a request of the live screen, so that the screen soon reports an absent broker."""


def top(
    interval: Annotated[str, typer.Option(metavar="TIME", help="Time between samples, as in 500ms, 2s, 1m.")] = "2s",
    sort: Annotated[Order, typer.Option(help="The order of the rows.")] = Order.lag,
    metrics: Annotated[
        str, typer.Option(metavar="URL", help="A broker's metrics page, as in http://127.0.0.1:9293/metrics.")
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after two samples; the default without a terminal.")
    ] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show topics, groups, brokers and open transactions, live."""
    from sparklog.cli.top.page import check_url
    from sparklog.cli.top.sampler import Sampler
    from sparklog.client.admin.admin import Admin
    from sparklog.environment.clock import SystemClock

    interval_s = parse_seconds(interval, "--interval", INTERVAL_S_MIN, INTERVAL_S_MAX)
    clock = SystemClock()
    live = not once and sys.stdin.isatty() and sys.stdout.isatty()
    limit_ms = min(timeout_ms(), SAMPLE_TIMEOUT_MS) if live else timeout_ms()
    with Admin(
        bootstrap_servers, request_timeout_ms=limit_ms, security=client_security(), wait_for_broker=False
    ) as admin:
        sampler = Sampler(
            admin,
            clock,
            metrics_url=check_url(metrics) if metrics else "",
            timeout_s=limit_ms / 1000,
            internal=internal,
        )
        if live:
            from sparklog.cli import console
            from sparklog.cli.top.screen import run_screen

            run_screen(console.stdout(), sys.stdin, sampler.take, interval_s, sort, clock.monotonic_s)
        else:
            print_once(sampler.take, interval_s, sort, clock)


def print_once(take: Callable[[], Snapshot], interval_s: float, order: Order, clock: MachineClock) -> None:
    """Take two samples, `interval_s` seconds apart, and print the second one with rates."""
    import time

    from sparklog.cli import console
    from sparklog.cli.top.rates import model
    from sparklog.cli.top.tables import render

    first = take()
    time.sleep(max(0.0, interval_s - (clock.monotonic_s() - first.at_s)))
    console.stdout().print(render(model(first, take()), order))
