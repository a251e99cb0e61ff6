"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparklog.settings import Scope, check

DEFAULT_BOOTSTRAP = "127.0.0.1:9292"
ENV_BOOTSTRAP = "SPARKLOG_BOOTSTRAP_SERVERS"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        envvar=ENV_BOOTSTRAP,
        metavar="HOST:PORT,…",
        help="The brokers to ask first.",
    ),
]


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """["a=1", "b=2"] as a dict. Raises typer.BadParameter naming `option`."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{pair!r}: write {option} NAME=VALUE")
        parsed[name.strip()] = value.strip()
    return parsed


def parse_list(text: str | None) -> list[str]:
    """Comma-separated names, blanks removed."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_settings(scope: Scope, pairs: list[str] | None) -> dict[str, Any]:
    """`--config NAME=VALUE` options as checked settings, under their Python names.

    Raises typer.BadParameter and InvalidConfigError.
    """
    checked = check(scope, parse_pairs(pairs or [], "--config"))
    return {name.replace(".", "_"): value for name, value in checked.items()}
