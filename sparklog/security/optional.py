"""Libraries of the extra `security`: imported when they are first needed, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from sparklog.errors import InvalidConfigError


def require(module: str, purpose: str) -> ModuleType:
    """Import `module`. Raises InvalidConfigError, which names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise InvalidConfigError(
            f"{purpose} needs the library {module.partition('.')[0]}: pip install 'sparklog[security]'"
        ) from e
