"""`python -m sparklog_broker`."""

from __future__ import annotations

import gc
import sys

# Imports make tens of thousands of objects and hardly any garbage; `run` looks for garbage again.
gc.disable()

from sparklog_broker.main import main  # noqa: E402

sys.exit(main())
