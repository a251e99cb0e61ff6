"""The name of the directory that caches data of remote segments. The broker fills it; clients on the broker's host map
its files."""

from __future__ import annotations

CACHE_DIRECTORY = "remote-log-cache"
