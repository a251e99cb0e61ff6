"""`python -m sparklog.gateway`: the command with which a broker starts its gateway."""

from __future__ import annotations

import gc
import sys

from sparklog.environment.imports import keep_pandas_out

# Imports create tens of thousands of objects and hardly any garbage; `run` enables collection again.
gc.disable()
keep_pandas_out()

from sparklog.gateway.main import main  # noqa: E402

sys.exit(main())
