"""`python -m sparklog_broker`."""

from __future__ import annotations

import gc
import os
import sys

# Imports create tens of thousands of objects and hardly any garbage; `run` enables collection again.
gc.disable()
# On import, NumPy's linear algebra starts a thread per processor, which a broker does not need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sparklog.environment.imports import keep_pandas_out  # noqa: E402
from sparklog.environment.streams import prepare  # noqa: E402

keep_pandas_out()

from sparklog_broker.main import main  # noqa: E402

prepare()
sys.exit(main())
