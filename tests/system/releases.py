"""Earlier releases, from the history, for tests of releases side by side."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = "ed6ad01"
"""The commit of the previous release."""
PREVIOUS_CLUSTER = "839f2bd"
"""The commit that clusters are upgraded from; the previous release had none."""
ONE_STRUCT_AFTER_THE_OTHER = """
import threading
import msgspec

learning = threading.RLock()

def in_turn(learns):
    def call(*arguments, **named):
        with learning:
            return learns(*arguments, **named)
    return call

def mend(module):
    make = in_turn(module.Decoder)

    class Decoder:
        __class_getitem__ = module.Decoder.__class_getitem__

        def __new__(cls, *arguments, **named):
            return make(*arguments, **named)

    module.Decoder, module.decode = Decoder, in_turn(module.decode)

mend(msgspec.msgpack)
mend(msgspec.json)
msgspec.convert = in_turn(msgspec.convert)
"""
"""Repair of the fault that kills one process in fifty of the earlier releases: see `sparklog/format/decoders.py`."""
PACKAGES = (".", "datasource", "broker_daemon")


def environment_of(release: Path) -> dict[str, str]:
    """Return an environment in which Python finds that release, regardless of the installed one."""
    path = os.pathsep.join(str((release / p).resolve()) for p in PACKAGES)
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def files_of(commit: str, where: Path) -> Path:
    """The release's files, in `where`. Skips the test if git does not have them."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"an earlier release is taken from the history, and git has no commit {commit} here")
    subprocess.run(["tar", "-x", "-C", where], input=archive.stdout, check=True)
    (where / "sitecustomize.py").write_text(ONE_STRUCT_AFTER_THE_OTHER)
    return where
