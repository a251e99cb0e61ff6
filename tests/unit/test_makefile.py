"""The Makefile's way from nothing to a .venv, with stand-ins for uv, pip and java on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "sed", "head", "make", "touch", "rm", "mkdir", "chmod", "cat", "env")

FAKE_UV = """#!/bin/bash
echo "uv $*" >> uv.log
if [ "$1" = venv ]; then
    mkdir -p .venv/bin
    printf '#!/bin/bash\\necho "ran $*"\\n' > .venv/bin/python
    chmod +x .venv/bin/python
fi
if [ "$1" = pip ] && [ -e fail ]; then exit 3; fi
exit 0
"""
FAKE_JAVA = """#!/bin/bash
echo 'openjdk version "{version}" 2025-01-01' >&2
"""


class Clone:
    """A directory with the Makefile, and a PATH of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "path"
        self.path.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.path / tool).symlink_to(found)
        shutil.copy(ROOT / "Makefile", directory)
        shutil.copy(ROOT / "pyproject.toml", directory)

    def fake(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.path), "HOME": str(self.directory)}
        return subprocess.run(
            [self.path / "make", *arguments],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def installed(self) -> int:
        """Return the number of installations."""
        log = self.directory / "uv.log"
        return log.read_text().count("uv pip install") if log.exists() else 0

    def touch_project(self) -> None:
        newer = (self.directory / "pyproject.toml").stat().st_mtime + 10
        for stamp in (self.directory / ".venv").glob(".installed-*"):
            newer = max(newer, stamp.stat().st_mtime + 10)
        os.utime(self.directory / "pyproject.toml", (newer, newer))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_make_alone_lists_the_targets(clone: Clone) -> None:
    shown = clone.make()
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text())
    wanted = {"demo", "test", "test-fast", "lint", "bench", "torture", "conf", "venv", "clean"}
    assert wanted <= set(targets)
    assert all(re.search(rf"make {target} +\S", shown.stdout) for target in targets), shown.stdout


def test_no_python_is_said_clearly(clone: Clone) -> None:
    result = clone.make("venv")
    assert result.returncode == 2
    assert "needs Python 3.11 or newer" in result.stderr
    assert not (clone.directory / ".venv").exists()


def test_an_old_python_is_not_taken(clone: Clone) -> None:
    clone.fake("python3", "#!/bin/bash\nexit 1\n")
    assert "needs Python 3.11 or newer" in clone.make("venv").stderr


def test_a_venv_is_created_once(clone: Clone) -> None:
    clone.fake("uv", FAKE_UV)
    first = clone.make("venv")
    assert (first.returncode, clone.installed()) == (0, 1), first.stderr
    assert "installing sparklog[dev]" in first.stdout
    assert clone.make("venv").returncode == 0
    assert clone.installed() == 1
    clone.touch_project()
    clone.make("venv")
    assert clone.installed() == 2


def test_a_failed_installation_is_done_anew(clone: Clone) -> None:
    clone.fake("uv", FAKE_UV)
    (clone.directory / "fail").touch()
    assert clone.make("venv").returncode == 2
    assert not list((clone.directory / ".venv").glob(".installed-*"))
    (clone.directory / "fail").unlink()
    again = clone.make("venv")
    assert again.returncode == 0
    assert "half-made" in again.stdout
    assert (clone.directory / "uv.log").read_text().count("uv venv") == 2


def test_the_development_venv_serves_the_demo_too(clone: Clone) -> None:
    clone.fake("uv", FAKE_UV)
    clone.fake("java", FAKE_JAVA.format(version="17.0.15"))
    clone.make("venv")
    result = clone.make("demo")
    assert result.returncode == 0, result.stderr
    assert "ran notebooks/flights_demo" in result.stdout
    assert clone.installed() == 1


def test_the_demo_installs_only_needed_packages(clone: Clone) -> None:
    clone.fake("uv", FAKE_UV)
    clone.fake("java", FAKE_JAVA.format(version="21"))
    assert clone.make("demo").returncode == 0
    assert ".[demo]" in (clone.directory / "uv.log").read_text()


@pytest.mark.parametrize(
    ("version", "says"), [(None, "no working 'java'"), ("1.8.0_392", "version 8"), ("11.0.2", "version 11")]
)
def test_java_is_checked_before_anything_is_installed(clone: Clone, version: str | None, says: str) -> None:
    clone.fake("uv", FAKE_UV)
    if version:
        clone.fake("java", FAKE_JAVA.format(version=version))
    for target in ("demo", "test"):
        result = clone.make(target)
        assert result.returncode == 2
        assert says in result.stderr
    assert clone.installed() == 0


def test_the_gate_runs_linters_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert "make lint" in text
    assert "make test" in text
