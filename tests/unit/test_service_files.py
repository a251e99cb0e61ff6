"""The files for services and containers name commands, options and settings that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sparklog.cli.app import app
from sparklog.settings import Scope, check, flatten
from tests.support.cases import for_each

CONF = Path(__file__).parents[2] / "conf"
UNITS = sorted(p.name for p in (CONF / "systemd").glob("*.service"))
COMPOSE = sorted(p.name for p in (CONF / "docker").glob("*.yaml"))


def check_command(words: list[str]) -> None:
    """Raise an error if the words behind `sparklog` name a command or an option that does not exist."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    names = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        option = word.partition("=")[0]
        assert not option.startswith("-") or option in names, (command.name, word)


def commands() -> Iterator[tuple[str, list[str]]]:
    yaml = pytest.importorskip("yaml")
    for name in COMPOSE:
        for service, about in yaml.safe_load((CONF / "docker" / name).read_text())["services"].items():
            if about["image"] == "sparklog":
                yield f"{name} {service}", about["command"]
    for name in UNITS:
        start = re.search(r"^ExecStart=\S+/sparklog (.*)$", (CONF / "systemd" / name).read_text(), re.MULTILINE)
        assert start is not None
        yield name, shlex.split(start[1])
    image = (CONF / "docker" / "Dockerfile").read_text()
    command = re.search(r"^CMD (\[.*\])$", image, re.MULTILINE)
    assert command is not None
    yield "Dockerfile", tomllib.loads(f"c = {command[1]}")["c"]


def test_commands_and_options_exist() -> None:
    found = dict(commands())
    assert len(found) == len(UNITS) + 1 + 2 + 3
    for words in found.values():
        check_command(words)
    with pytest.raises(AssertionError):
        check_command(["broker", "--no-such-option"])


def test_the_settings_of_the_image_exist() -> None:
    given = flatten(tomllib.loads((CONF / "docker" / "broker.toml").read_text()))
    assert check(Scope.BROKER, given)["queued.max.request.bytes"] == 128 << 20


def test_the_image_has_the_extras_that_its_commands_need() -> None:
    extras = re.search(r"\.whl[^)]*\)\[([\w,]+)\]", (CONF / "docker" / "Dockerfile").read_text())
    assert extras is not None
    project = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert {"cluster", "console", "security"} <= set(extras[1].split(","))


@for_each("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not installed")
    text = (CONF / "systemd" / name).read_text()
    for copy, content in ((name, text), (f"wrong-{name}", text.replace("Restart=on-failure", "Restart=perhaps"))):
        path = tmp_path / copy
        path.write_text(content.replace("/usr/local/bin/sparklog", sys.executable))
        done = subprocess.run(
            [verify, "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
        )
        if "Failed to" in done.stderr and "perhaps" not in done.stderr and done.returncode:
            pytest.skip(done.stderr.strip()[:200])  # no runtime directory of systemd
        assert (copy in done.stderr) == copy.startswith("wrong"), done.stderr


def test_the_image_gets_one_wheel_of_several(tmp_path: Path) -> None:
    """`dist/` keeps the wheels of earlier builds; pip takes no extras for two files at once."""
    run = re.search(r'pip install --no-cache-dir ("[^"]+")', (CONF / "docker" / "Dockerfile").read_text())
    assert run is not None
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        (tmp_path / f"sparklog-{version}-py3-none-any.whl").touch()
        (tmp_path / f"sparklog-{version}.tar.gz").touch()
    shown = subprocess.run(
        ["sh", "-c", f"printf %s {run[1].replace('/tmp/', f'{tmp_path}/')}"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == f"{tmp_path}/sparklog-0.10.0-py3-none-any.whl[security,cluster,console,sql,lake]"
