"""`sparklog config`: prints every setting of the settings table with its description.

`conf/broker.toml` is the output of `sparklog config broker`, and `markdown_table` generates the user guide's tables.
Tests compare both with the settings table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.destination import destination
from sparklog.settings import Scope, Setting, Value, settings_of

app = typer.Typer(help="Print annotated settings; show and change the settings of running brokers.")

EPILOG = """\
**Examples**

`sparklog config broker --output broker.toml`

`sparklog broker --config broker.toml`

`sparklog config topic`

`sparklog config alter --all max.connections=5000`

`sparklog config describe --broker 1`

Settings have Kafka's names where Kafka has them. Write topic settings as --config NAME=VALUE on the command line, and as
parameters with underscores (linger_ms=20) in Python.
"""

_LINE_WIDTH = 110


class ConfigScope(StrEnum):
    """The components that have settings."""

    broker = "broker"
    topic = "topic"
    producer = "producer"
    consumer = "consumer"
    client = "client"


Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]


@app.callback(invoke_without_command=True, epilog=EPILOG)
def config(context: typer.Context, output: Output = None) -> None:
    """Print annotated settings (without a command: the broker's); show and change the settings of running brokers."""
    if context.invoked_subcommand is None:
        _print(ConfigScope.broker, output)


def _printer(scope: ConfigScope) -> Callable[..., None]:
    def command(output: Output = None) -> None:
        _print(scope, output)

    command.__doc__ = f"Print every setting of a {scope.value} with its default, unit, bounds and meaning."
    return command


for _scope in ConfigScope:
    app.command(_scope.value, epilog=EPILOG)(_printer(_scope))


def _print(scope: ConfigScope, output: Path | None) -> None:
    text = broker_toml() if scope is ConfigScope.broker else settings_toml(Scope(scope.value))
    if output is None:
        print(text, end="")
        return
    with destination(output) as out:
        out.write(text.encode())
    print(f"wrote {output}")


def broker_toml() -> str:
    """Return an annotated broker configuration with all defaults: broker settings, then the `[topic]` table."""
    head = _comment(
        "Configuration of a sparklog broker: `sparklog broker --config broker.toml`. Every setting is here, commented out, with its "
        "default. Command-line options win over this file. An unknown or misspelt name is refused. This file is "
        "generated from the table of settings (`make conf`). `sparklog config alter` changes dynamic settings of running brokers; its values win over this file."
    )
    topic = _comment(
        "Defaults for topics that do not set them themselves (`sparklog topic create NAME --config segment.ms=3600000`)."
    )
    return f"{head}\n\n{settings_toml(Scope.BROKER)}\n{topic}\n\n[topic]\n\n{settings_toml(Scope.TOPIC)}"


def settings_toml(scope: Scope) -> str:
    """Return the settings of one scope as TOML: for each a description and the default, all in comments."""
    return "\n".join(
        f"{_comment(s.doc)}\n{_comment(facts(s))}\n# {toml_key(s)} = {toml_value(s.default)}\n"
        for s in settings_of(scope).values()
    )


def facts(setting: Setting) -> str:
    """Return type, unit and bounds of a setting in words: "whole number, ms, 100 to 3600000". A setting that can change
    while the broker runs is "dynamic"."""
    parts = [{"int": "whole number", "float": "number", "bool": "true or false", "str": "text"}[setting.type_name]]
    if setting.choices:
        parts = ["one of " + ", ".join(c or "empty" for c in setting.choices)]
    if setting.unit:
        parts.append(setting.unit)
    if setting.minimum is not None and setting.maximum is not None:
        parts.append(f"{setting.minimum} to {setting.maximum}")
    elif setting.minimum is not None:
        parts.append(f"at least {setting.minimum}")
    elif setting.maximum is not None:
        parts.append(f"at most {setting.maximum}")
    if setting.dynamic:
        parts.append("dynamic")
    return ", ".join(parts)


def toml_key(setting: Setting) -> str:
    """Return the setting's name as a TOML key.

    The name `a.b` is quoted if `a` is a setting too, because TOML does not allow `a` to be both a value and a table.
    """
    parts = setting.name.split(".")
    others = settings_of(setting.scope)
    is_begun = any(".".join(parts[:i]) in others for i in range(1, len(parts)))
    return f'"{setting.name}"' if is_begun else setting.name


def toml_value(value: Value) -> str:
    """Return a setting's value in TOML notation."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def markdown_table(scope: Scope) -> str:
    """Return the settings of one scope as a Markdown table."""
    rows = [f"| `{s.name}` | `{toml_value(s.default)}` | {facts(s)} | {s.doc} |" for s in settings_of(scope).values()]
    return "\n".join(["| setting | default | values | meaning |", "|---|---|---|---|", *rows])


def _comment(text: str) -> str:
    return textwrap.fill(text, _LINE_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
