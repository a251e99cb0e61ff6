"""The wheel and the sdist: their content, and the function of an installation from them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sparklog", "pyspark_sparklog", "sparklog_broker")
ROUND_TRIP = """
import pathlib, sys, sparklog
for name in ("sparklog", "pyspark_sparklog", "sparklog_broker"):
    found = pathlib.Path(__import__(name).__file__)
    assert pathlib.Path(sys.prefix) in found.parents, found
with sparklog.start_local() as broker:
    sparklog.Admin(broker.bootstrap_servers).create_topic("t")
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        producer.send("t", value=b"hello")
    print(sparklog.read_table(broker.bootstrap_servers, "t").column("value").to_pylist())
"""


def run(*command: str | Path, cwd: Path) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name another sparklog
    done = subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one wheel and one sdist. The wheel is built from the sdist, as package indexes' users do."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def test_the_wheel_holds_exactly_the_packages(dist: Path) -> None:
    names = zipfile.ZipFile(only(dist, "*.whl")).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    page = ("templates/base.html", "static/htmx.min.js", "static/htmx.LICENSE.txt", "static/console.css")
    assert {f"sparklog/console/{name}" for name in page} <= set(names)


def test_the_sdist_has_all_files_for_a_contributor(dist: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "conf/broker.toml"} <= names
    assert "tests/conftest.py" in names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


@pytest.mark.nightly
def test_an_installation_from_the_wheel_works(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    zipfile.ZipFile(only(dist, "*.whl")).extractall(site)
    # The dependencies of this environment, but not its sparklog: a .pth file's own .pth files are not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    assert run(python, "-W", "error", "-c", ROUND_TRIP, cwd=tmp_path).strip() == "[b'hello']"
    entry = "from sparklog.cli.main import run; run()"
    assert "topic" in run(python, "-c", entry, "--help", cwd=tmp_path)
