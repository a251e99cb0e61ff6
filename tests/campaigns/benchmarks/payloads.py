"""The payloads both sides send: a pool of lines in a file, half of every line random, half constant.

The OpenMessaging benchmark calls this randomBytesRatio 0.5. Kafka's performance tool reads such files; its own
generator makes every byte of every record in the send loop, which slows it down.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

LINES = 10_000
SEED = 1
_ALPHABET = (string.ascii_letters + string.digits).encode()


def payload_file(directory: Path, value_bytes: int) -> Path:
    """The file with lines of `value_bytes`, written when it is not there; the same on every machine."""
    path = directory / f"payload-{value_bytes}.txt"
    if not path.exists():
        chosen = random.Random(SEED)
        constant = b"0" * (value_bytes - value_bytes // 2)
        lines = [bytes(chosen.choices(_ALPHABET, k=value_bytes // 2)) + constant for _ in range(LINES)]
        partial = path.with_suffix(".partial")
        partial.write_bytes(b"".join(line + b"\n" for line in lines))
        partial.rename(path)
    return path


def read_payloads(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()
