"""Randomness as a parameter: unique ids, and bytes that cannot be guessed."""

from __future__ import annotations

import os
import uuid
from typing import Protocol


class Randomness(Protocol):
    """Source of ids and secrets."""

    def new_id(self) -> str:
        """Return 32 random hexadecimal digits, unique among all calls, processes and machines."""
        ...

    def token_bytes(self, size_bytes: int) -> bytes:
        """Return `size_bytes` random bytes that cannot be guessed."""
        ...


class SystemRandomness:
    """The randomness of the operating system."""

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def token_bytes(self, size_bytes: int) -> bytes:
        return os.urandom(size_bytes)
