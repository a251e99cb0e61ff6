"""Imports of a consumer's first use: every process that reads pays for them, each Spark worker too."""

from __future__ import annotations

import subprocess
import sys


def test_a_consumer_imports_no_module_of_the_brokers_storage() -> None:
    code = (
        "import sys, sparklog; sparklog.Consumer; "
        "print(sorted(m for m in sys.modules if m.startswith(('sparklog.log.', 'sparklog.metadata.', 'sqlite3'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['sparklog.log.tiering', 'sparklog.log.tiering.cache_directory']"
