"""Bytecode in the archives that Spark's Python processes import from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark_sparklog.precompile import main, precompile

SOURCE = "def where():\n    return __file__\n"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    lib = tmp_path / "python" / "lib"
    lib.mkdir(parents=True)
    with zipfile.ZipFile(lib / "some.zip", "w") as made:
        made.writestr("some/__init__.py", "")
        made.writestr("some/module.py", SOURCE)
        made.writestr("some/template.py", "class {name}:\n")
        made.writestr("some/tests/test_module.py", "")
        made.writestr("some/data.json", "{}")
    return lib / "some.zip"


def _loaded_from(archive: Path) -> str:
    program = "import some.module as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_python_imports_the_bytecode(archive: Path) -> None:
    assert _loaded_from(archive) == f"{archive}/some/module.py"
    assert precompile(archive) == 2
    assert _loaded_from(archive) == f"{archive}/some/module.pyc"


def test_all_else_stays_and_again_is_fine(archive: Path) -> None:
    with zipfile.ZipFile(archive) as before:
        content = {name: before.read(name) for name in before.namelist()}
    mode = archive.stat().st_mode
    assert precompile(archive) == precompile(archive) == 2
    with zipfile.ZipFile(archive) as after:
        names = after.namelist()
        assert {name: after.read(name) for name in names if name in content} == content
    assert sorted(set(names) - set(content)) == ["some/__init__.pyc", "some/module.pyc"]
    assert len(names) == len(set(names))
    assert archive.stat().st_mode == mode
    assert list(archive.parent.iterdir()) == [archive]


def test_bytecode_of_another_source_is_not_used(archive: Path) -> None:
    precompile(archive)
    with zipfile.ZipFile(archive) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(archive, "w") as new:
        for name, data in content.items():
            new.writestr(name, data + b"# patched\n" if name == "some/module.py" else data)
    assert _loaded_from(archive) == f"{archive}/some/module.py"


def test_the_command_names_its_changes(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = archive.parents[2]
    assert main([str(home)]) == 0
    assert "bytecode of 2 modules" in capsys.readouterr().out
    assert main([str(home / "python")]) == 1
    assert "no python/lib/*.zip" in capsys.readouterr().err


def test_files_that_are_no_archive_stay(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive.write_bytes(b"nothing")
    assert main([str(archive.parents[2])]) == 1
    assert "stays as it was" in capsys.readouterr().err
    assert archive.read_bytes() == b"nothing"
    assert list(archive.parent.iterdir()) == [archive]
