"""`python -m sparklog_broker`."""

from __future__ import annotations

import gc
import os
import sys

# Imports make tens of thousands of objects and hardly any garbage; `run` looks for garbage again.
gc.disable()
# NumPy's linear algebra starts a thread per processor when it is imported; a broker has no use for them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sparklog.environment.streams import prepare  # noqa: E402
from sparklog_broker.main import main  # noqa: E402

prepare()
sys.exit(main())
