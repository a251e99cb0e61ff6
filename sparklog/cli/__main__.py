"""`python -m sparklog.cli` runs the `sparklog` command if its script is not on the PATH."""

from __future__ import annotations

from sparklog.cli.main import run

run()
