"""`python -m pyspark_sparklog.precompile`: adds bytecode to the archives in Spark's `python/lib` (`pyspark.zip` and
Py4J's), so that Python processes start sooner.

Every Python process that Spark starts (one per start of a stream that has a Python source, one per kind of worker, and
workers again after a minute without work) imports PySpark from `$SPARK_HOME/python/lib/pyspark.zip`, even if PySpark
was installed with pip. The archive has sources only, and Python stores no bytecode of modules from archives: each
process compiles a hundred modules, which takes about a second. Python uses bytecode that is inside the archive. It
compares the bytecode with the source and with its own version, so outdated bytecode is ignored and never wrong. Run
this command again after each installation of Spark or Python. Spark's directory is the argument, else SPARK_HOME, else
the directory of the PySpark that this Python imports.
"""

from __future__ import annotations

import argparse
import os
import py_compile
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


def spark_home() -> Path:
    """Return SPARK_HOME, or the directory of the PySpark that this Python imports."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    import pyspark

    return Path(pyspark.__file__).parent


def precompile(archive: Path) -> int:
    """Write the archive again with the bytecode of this Python beside its sources. Returns the number of modules
    compiled.

    The new archive replaces the old one atomically; processes that have the old one open go on reading it. Raises
    OSError if an archive cannot be read or written, and zipfile.BadZipFile.
    """
    compiled = 0
    with tempfile.TemporaryDirectory(prefix=f".{archive.name}.", dir=archive.parent) as directory:
        copy = Path(directory, archive.name)
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as out, zipfile.ZipFile(archive) as source:
            for entry in source.infolist():
                if entry.filename.endswith(".pyc"):
                    continue  # of an earlier run, perhaps of another Python
                content = source.read(entry)
                out.writestr(entry, content)
                if not entry.filename.endswith(".py") or "/tests/" in entry.filename:
                    continue
                bytecode = _bytecode(content, f"{archive}/{entry.filename}", Path(directory))
                if bytecode is not None:  # not compressed: it is there to be quick
                    out.writestr(zipfile.ZipInfo(f"{entry.filename}c", entry.date_time), bytecode)
                    compiled += 1
        copy.chmod(archive.stat().st_mode & 0o777)
        copy.replace(archive)
    return compiled


def _bytecode(source: bytes, name: str, directory: Path) -> bytes | None:
    """Return the content of the .pyc of `source`, which is called `name` in tracebacks; None if it is not valid Python
    (a template)."""
    module, compiled = directory / "module.py", directory / "module.pyc"
    module.write_bytes(source)
    # by the source's hash: an archive has times without a time zone
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    try:
        py_compile.compile(str(module), str(compiled), name, doraise=True, invalidation_mode=mode)
    except py_compile.PyCompileError:
        return None
    return compiled.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Add bytecode to all archives of Spark's directory. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_sparklog.precompile", description=__doc__)
    parser.add_argument(
        "spark_home", nargs="?", type=Path, help="Spark's directory (default: SPARK_HOME, else PySpark's)"
    )
    home: Path = parser.parse_args(arguments).spark_home or spark_home()
    archives = sorted((home / "python" / "lib").glob("*.zip"))
    if not archives:
        print(f"error: no python/lib/*.zip in {home}: name the directory that Spark is installed in", file=sys.stderr)
        return 1
    for archive in archives:
        try:
            print(f"{archive}: bytecode of {precompile(archive)} modules")
        except (OSError, zipfile.BadZipFile) as e:
            print(f"error: {archive} stays as it was: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
