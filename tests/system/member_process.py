"""A member of a consumer group in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class MemberProcess:
    """`group_member.py`, and its output."""

    def __init__(self, servers: str, group: str, topic: str, instance: str = "") -> None:
        command = [sys.executable, "-m", "tests.system.group_member", servers, group, topic, instance]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    @property
    def has(self) -> set[int]:
        """The partitions it believes to have."""
        found: set[int] = set()
        for event in list(self.said):
            if event["what"] == "assigned":
                found |= set(event["partitions"])
            elif event["what"] in ("revoked", "lost"):
                found -= set(event["partitions"])
        return found

    def records(self, what: str) -> list[tuple[int, int]]:
        return [(p, o) for event in list(self.said) if event["what"] == what for p, o in event["records"]]

    def end(self, number: int | None = None) -> None:
        """Lets it close, or sends it a signal that ends it."""
        if number is not None:
            self.process.send_signal(number)  # harmless when it has ended
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
