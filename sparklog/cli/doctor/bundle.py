"""A debug bundle: an archive of limited size with findings, settings, metrics and logs, without secrets."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from typing import Any, BinaryIO

from sparklog.cli.doctor.scrub import Scrubber
from sparklog.environment.clock import MachineClock

FILE_BYTES_MAX = 8 * 1024 * 1024
"""Largest size of one file of the bundle. The end of a longer file is cut off."""
BUNDLE_BYTES_MAX = 64 * 1024 * 1024
"""Largest size of all files before compression. Further files are left out."""
FILE_MODE = 0o600
DIRECTORY = "sparklog-bundle"
MANIFEST = "manifest.json"


class Bundle:
    """Writes an archive. The scrubber and the limits apply to every text."""

    def __init__(
        self,
        out: BinaryIO,
        scrubber: Scrubber,
        clock: MachineClock,
        report: Callable[[str], None],
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        bytes_max: int = BUNDLE_BYTES_MAX,
    ) -> None:
        """Begin the archive. `report`: called with the name and size of each file, as a line of progress."""
        self._tar = tarfile.open(fileobj=out, mode="w:gz")  # noqa: SIM115 - closed by `close`
        self._scrubber = scrubber
        self._time_s = clock.now_ms() // 1000
        self._report = report
        self._file_bytes_max, self._remaining = file_bytes_max, bytes_max
        self._files: list[dict[str, Any]] = []
        self._missing: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Number of files so far."""
        return len(self._files)

    def add_json(self, name: str, value: Any) -> None:
        """Add a value as JSON. `value`: a value for JSON, or a named tuple of such values."""
        clean = self._scrubber.value(value)
        self._add(name, json.dumps(clean, indent=1, ensure_ascii=False).encode("utf-8", "replace"))

    def add_text(self, name: str, text: str) -> None:
        """Add a text."""
        self._add(name, self._scrubber.text(text).encode("utf-8", "replace"))

    def miss(self, name: str, reason: str) -> None:
        """Note a missing file in the manifest."""
        self._missing[self._scrubber.text(name)] = self._scrubber.text(reason)

    def close(self, facts: dict[str, Any]) -> None:
        """Write the manifest and end the archive."""
        self._remaining = self._file_bytes_max
        listed = {**facts, "files": list(self._files), "missing": self._missing}
        self.add_json(MANIFEST, listed)
        self._tar.close()

    def _add(self, name: str, data: bytes) -> None:
        kept = data[: self._file_bytes_max]
        if len(kept) > self._remaining:
            self.miss(name, f"{len(kept)} bytes, and the bundle has room for {self._remaining}")
            return
        self._remaining -= len(kept)
        self._report(f"{name} ({len(kept):,} bytes)")
        info = tarfile.TarInfo(f"{DIRECTORY}/{name}")
        info.size, info.mode, info.mtime = len(kept), FILE_MODE, self._time_s
        self._tar.addfile(info, io.BytesIO(kept))
        self._files.append({"name": name, "bytes": len(kept), "cut": len(kept) < len(data)})
