"""Exclusion of imported objects from garbage collection, so that Spark's Python processes need less time between tasks.

Spark's daemon runs a full garbage collection after each job of a reused process. The collection walks over all imported
objects (PySpark, Arrow, NumPy: 20 to 30 ms), in four processes per micro-batch, while the micro-batch goes on.
"""

from __future__ import annotations

import gc
import os
import sys

FREEZES_MAX = 4
"""Largest number of freezes per process. Without a limit, code that keeps importing modules would take more and more
objects out of garbage collection."""


class ImportedObjects:
    """The imported objects of this process that are excluded from garbage collection."""

    def __init__(self) -> None:
        self._modules = 0
        self._freezes = 0

    def freeze(self) -> None:
        """Take all living objects out of garbage collection if modules were imported since the last call.

        Called at the end of a task, when few other objects are alive. Reference counting still frees frozen objects,
        and later objects are collected as usual. The call does nothing outside a Python worker that Spark reuses
        (SPARK_REUSE_WORKER).
        """
        if len(sys.modules) <= self._modules or self._freezes >= FREEZES_MAX:
            return
        if os.environ.get("SPARK_REUSE_WORKER") is None:
            return
        gc.collect()  # garbage that is frozen would stay
        gc.freeze()
        self._modules = len(sys.modules)
        self._freezes += 1


imported_objects = ImportedObjects()
