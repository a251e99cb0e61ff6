"""Options that several commands have, and their parsing."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli import completion
from sparklog.cli.client_command import ENV_BOOTSTRAP, client_security
from sparklog.cli.durations import parse_number_or_ms
from sparklog.settings import Scope, check

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin

DEFAULT_BOOTSTRAP = "127.0.0.1:9292"
DEFAULT_TIMEOUT_MS = 30_000


class TableFormat(StrEnum):
    """Output formats of commands that show rows."""

    table = "table"
    json = "json"


class TextFormat(StrEnum):
    """Output formats of commands that show a report."""

    text = "text"
    json = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        envvar=ENV_BOOTSTRAP,
        metavar="HOST:PORT,…",
        help="Brokers for the first connection.",
    ),
]


def config_option(scope: Scope, help: str) -> Any:
    """Return the repeatable option `--config NAME=VALUE` for settings of `scope`, with shell completion."""
    return typer.Option("--config", "-c", metavar="K=V", help=help, autocompletion=completion.settings(scope))


AllowInsecure = Annotated[
    bool, typer.Option("--allow-insecure", help="Listen on an address that other hosts can reach, without passwords.")
]

TopicName = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=completion.topics)]

Unasked = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        envvar="SPARKLOG_TIMEOUT",
        metavar="TIME",
        help="Longest wait for a broker's answer: 500ms, 30s, 2m; a number alone is seconds (default: 30s).",
    ),
]
_TIMEOUTS = {
    Scope.PRODUCER: ("request.timeout.ms", "max.block.ms", "delivery.timeout.ms"),
    Scope.CONSUMER: ("request.timeout.ms", "default.api.timeout.ms"),
}
"""The settings that `--timeout` sets, by scope."""
_timeout_ms: int | None = None


def set_timeout(timeout: str | None) -> None:
    """Set the value of `--timeout` for all commands. Raises typer.BadParameter."""
    global _timeout_ms
    _timeout_ms = None if timeout is None else parse_number_or_ms(timeout, "--timeout", 1_000, 1)


def timeout_ms() -> int:
    """Return the longest wait for a broker's answer, in ms."""
    return DEFAULT_TIMEOUT_MS if _timeout_ms is None else _timeout_ms


def open_admin(bootstrap_servers: str) -> Admin:
    """Return an Admin with the timeout of `--timeout` and the connection settings of `--command-config`."""
    from sparklog.client.admin.admin import Admin

    return Admin(bootstrap_servers, request_timeout_ms=timeout_ms(), security=client_security())


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """Return ["a=1", "b=2"] as {"a": "1", "b": "2"}. Raises typer.BadParameter that names `option`."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{pair!r}: write {option} NAME=VALUE")
        parsed[name.strip()] = value.strip()
    return parsed


def parse_changes(pairs: list[str], removed: list[str], option: str, removal: str) -> dict[str, str | None]:
    """Return the new values of settings by name; None resets a setting to its default.

    Raises typer.BadParameter, also for a name that `option` sets and `removal` removes.
    """
    changes: dict[str, str | None] = dict(parse_pairs(pairs, option))
    for name in removed:
        if name in changes:
            raise typer.BadParameter(f"{name} is given to {option or 'NAME=VALUE'} and to {removal}")
        changes[name] = None
    return changes


def parse_list(text: str | None) -> list[str]:
    """Split a text at commas, without blanks and empty parts."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_settings(scope: Scope, pairs: list[str] | None) -> dict[str, Any]:
    """Return the checked settings of `--config NAME=VALUE` and of `--timeout`, by their Python names. Raises
    typer.BadParameter and InvalidConfigError."""
    timeouts: dict[str, object] = {}
    if _timeout_ms is not None:
        timeouts = dict.fromkeys(_TIMEOUTS[scope], _timeout_ms)
    checked = check(scope, timeouts | parse_pairs(pairs or [], "--config"))
    return {name.replace(".", "_"): value for name, value in checked.items()}
