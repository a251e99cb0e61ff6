"""The short way into the broker accepts exactly the arguments of the long way."""

from __future__ import annotations

import inspect

from sparklog.cli.broker import broker
from sparklog.cli.main import BROKER_OPTIONS, is_plain_broker
from tests.support.cases import for_each


def test_the_options_are_the_commands() -> None:
    """But for those that run no broker."""
    others = {"context", "secure_setup", "hostname", "brokers", "super_user"}
    parameters = [name for name in inspect.signature(broker).parameters if name not in others]
    assert sorted(BROKER_OPTIONS) == sorted("--" + name.replace("_", "-") for name in parameters)


@for_each(
    "text",
    [
        "broker",
        "broker --listen 127.0.0.1:0",
        "broker --listen=127.0.0.1:0 --data-dir d --config f --log-level DEBUG",
    ],
)
def test_the_short_way(text: str) -> None:
    assert is_plain_broker(text.split())


@for_each(
    "text",
    [
        "",
        "topic list",
        "--debug broker",
        "broker --help",
        "broker decommission 3",
        "broker -h",
        "broker --lisen x",
        "broker --listen",
        "broker --listen --data-dir d",
        "broker extra",
        "broker --data-dir d extra",
    ],
)
def test_everything_else_goes_the_long_way(text: str) -> None:
    assert not is_plain_broker(text.split())
