"""Libraries of the extras `security` and `schemas`. They are imported at their first use; a missing one causes an error
that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from sparklog.errors import InvalidConfigError


def require(module: str, purpose: str, extra: str = "security") -> ModuleType:
    """Import `module`. Raises InvalidConfigError if it is not installed; the error names `purpose` and the `extra`
    to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise InvalidConfigError(
            f"{purpose} needs the library {module.partition('.')[0]}: pip install 'sparklog[{extra}]'"
        ) from e
