"""A fixed share of the Spark tests with every Spark and every Python that sparklog supports: `make test-matrix`.

Each cell gets an environment of its own, made anew when pyproject.toml changes. A Python that is not on this machine,
and that uv cannot bring, leaves its cells untried, and the table says so. Exit status 1 if a cell failed or none was
tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = {"4.0": "4.0.2", "4.1": "4.1.1", "4.2": "4.2.0"}
SHARE = (
    "tests/spark/test_discovery_and_errors.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_state.py",
    "tests/spark/test_testing_kit.py",
    "tests/spark/test_named_sources.py",
    *(f"tests/spark/kafka_parity/test_{name}.py" for name in ("columns", "sink", "stream_positions")),
)
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.119")
OLD_PYSPARK_LEAVES_SOCKETS = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
TEST_TIMEOUT_S, CELL_TIMEOUT_S = 900, 3600
"""Long enough for a machine that has other things to do: a test that is cut off leaves a Spark session that answers
wrongly."""


class Outcome(NamedTuple):
    """Outcome of a cell: `word` for the table, `detail` behind it."""

    word: str
    detail: str


def interpreter(version: str, uv: str | None) -> str | None:
    """A Python of that version on this machine, else one that uv brings."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))]
    for candidate in candidates:
        if candidate is not None and _is_version(str(candidate), version):
            return str(candidate)
    if uv is not None:
        brought = subprocess.run([uv, "python", "install", version], capture_output=True, text=True, check=False)
        if brought.returncode == 0:
            return version
    return None


def _is_version(python: str, version: str) -> bool:
    """Return True if it runs (a shim of pyenv may lead nowhere) and has the version in its name."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def environment(directory: Path, python: str, spark: str, uv: str | None) -> Path:
    """The Python of the cell's environment. Raises CalledProcessError if it cannot be made."""
    made = directory / "bin" / "python"
    stamp = directory / ".installed"
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + spark
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return made
    shutil.rmtree(directory, ignore_errors=True)
    packages = ["-e", f"{ROOT}[connect,testing]", f"pyspark=={spark}", *TOOLS]
    if uv is not None:
        _quietly([uv, "venv", "--python", python, str(directory)])
        _quietly([uv, "pip", "install", "--python", str(made), *packages])
    else:
        _quietly([python, "-m", "venv", str(directory)])
        _quietly([str(made), "-m", "pip", "install", *packages])
    stamp.write_text(wanted, encoding="utf-8")
    return made


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def run_cell(python: Path, tests: list[str]) -> Outcome:
    """Run the tests; their output is shown if they fail."""
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "--all",
        f"--timeout={TEST_TIMEOUT_S}",
        "-p",
        "no:cacheprovider",
        *OLD_PYSPARK_LEAVES_SOCKETS,
        *tests,
    ]
    settings = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False, timeout=CELL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Outcome("FAILED", f"not done after {CELL_TIMEOUT_S} s")
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
        return Outcome("FAILED", last)
    return Outcome("works", last)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run a fixed share of the Spark tests with several Sparks and Pythons."
    )
    parser.add_argument("--environments", type=Path, default=ROOT / ".matrix", help="where the environments are made")
    parser.add_argument("--spark", action="append", choices=sorted(SPARKS), help="only this Spark (may be repeated)")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this Python (may be repeated)")
    parser.add_argument("tests", nargs="*", help="other tests than the fixed share")
    given = parser.parse_args()
    uv = shutil.which("uv")
    outcomes: dict[str, Outcome] = {}
    for version in given.python or PYTHONS:
        python = interpreter(version, uv)
        for name in given.spark or sorted(SPARKS):
            cell = f"Spark {SPARKS[name]}, Python {version}"
            if python is None:
                outcomes[cell] = Outcome("not tried", f"there is no Python {version} here")
                continue
            try:
                made = environment(given.environments / f"{name}-{version}", python, SPARKS[name], uv)
            except subprocess.CalledProcessError as e:
                outcomes[cell] = Outcome("not tried", f"not installable: {(e.stderr or '').strip()[-300:]}")
                continue
            outcomes[cell] = run_cell(made, given.tests or list(SHARE))
            print(f"{cell}: {outcomes[cell].word} ({outcomes[cell].detail})", flush=True)
    print("\n".join(["", *(f"{cell:<32} {o.word:<10} {o.detail}" for cell, o in outcomes.items())]))
    words = [o.word for o in outcomes.values()]
    return int("FAILED" in words or "works" not in words)


if __name__ == "__main__":
    sys.exit(main())
