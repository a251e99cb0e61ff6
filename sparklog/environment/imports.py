"""Imports that a process without users' data frames does without."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["keep_pandas_out"]


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
        return None


def keep_pandas_out() -> None:
    """Refuse later imports of pandas. pyarrow imports an installed pandas with the first Python value that it converts,
    only to recognize values of pandas; this takes 0.2 s of processor time and 40 MB."""
    sys.meta_path.insert(0, _NoPandas())
