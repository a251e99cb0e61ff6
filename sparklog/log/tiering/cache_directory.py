"""The name of a data directory's cache of remote segments: the broker fills it, clients on its host map its files."""

from __future__ import annotations

CACHE_DIRECTORY = "remote-log-cache"
