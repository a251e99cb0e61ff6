"""`python -m sparklog.cli`: the `sparklog` command where its script is not on the PATH."""

from __future__ import annotations

from sparklog.cli.main import run

run()
