"""The object store behind `remote.log.storage.url`, through fsspec, with the few operations that tiering needs.

Every failure of fsspec raises RemoteStorageError, which names the object and never the options, because these can hold
secrets. Tiering writes every object once, under a name of its own, and lists only manifests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.errors import CorruptBatchError, InvalidConfigError, RemoteStorageError, SparklogError
from sparklog.format.checksum import crc32c
from sparklog.log.tiering.state import ObjectInfo

if TYPE_CHECKING:
    import fsspec

WRITE_BLOCK_BYTES = 8 * 1024 * 1024
_FLAT = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2"})
"""Stores without directories."""
_LOCAL = frozenset({"file", "local"})


def parse_options(text: str, setting: str = "remote.log.storage.options") -> dict[str, Any]:
    """Parse the options of a store. `text` is a JSON object, or the path of a file with a JSON object; empty: no
    options. `what`: name of the options in errors. Raises InvalidConfigError, which does not repeat the value."""
    if not text.strip():
        return {}
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).expanduser().read_text()
        except (OSError, ValueError) as e:
            reason = (e.strerror if isinstance(e, OSError) else None) or "no text"
            raise InvalidConfigError(
                f"{setting} is neither a JSON object nor a file that can be read ({reason})"
            ) from None
    try:
        options = json.loads(text)
    except ValueError as e:
        where = f"line {e.lineno}, column {e.colno}" if isinstance(e, json.JSONDecodeError) else "?"
        raise InvalidConfigError(f"{setting} is not JSON ({where})") from None
    if not isinstance(options, dict):
        raise InvalidConfigError(f'{setting} has to be a JSON object, as in {{"anon": false}}')
    return options


class ObjectStore:
    """The objects below `url`, by keys relative to `url`. Thread-safe."""

    def __init__(
        self, url: str, options: dict[str, Any] | None = None, *, setting: str = "remote.log.storage.url"
    ) -> None:
        """Create the access without connecting. `setting`: name of the URL in errors. Raises InvalidConfigError for a
        URL without a protocol, an unknown protocol, or a protocol whose package is not installed."""
        from fsspec.core import url_to_fs  # heavy, and few processes need it

        self.url = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(url, **{"use_listings_cache": False, **(options or {})})
        except (ValueError, ImportError, TypeError, OSError) as e:
            raise InvalidConfigError(f"{setting} = {url!r} cannot be used: {e}") from e
        self._root = root.rstrip("/")
        protocol = self._fs.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        if "://" not in url:
            raise InvalidConfigError(
                f"{setting} = {url!r}: give a URL with its protocol, as in s3://bucket/prefix or file:///mnt/tier"
            )

    @property
    def file_system(self) -> fsspec.AbstractFileSystem:
        return self._fs

    def path(self, key: str) -> str:
        """Return the object's path in `file_system`."""
        return f"{self._root}/{key}"

    # --- writing ---

    def make_folder(self, prefix: str) -> None:
        """Create a folder, if the store has directories. Raises RemoteStorageError."""
        if not self._protocols & _FLAT:
            with self._translate_errors("make the folder", prefix):
                self._fs.makedirs(self.path(prefix), exist_ok=True)

    def write(self, key: str, parts: Iterable[bytes]) -> ObjectInfo:
        """Write an object, and check that the store reports its full size. Raises RemoteStorageError, and any
        SparklogError that reading `parts` raises."""
        size, checksum = 0, 0
        with self._translate_errors("write", key):
            with self._fs.open(self.path(key), "wb", block_size=WRITE_BLOCK_BYTES) as f:
                for part in parts:
                    f.write(part)
                    size += len(part)
                    checksum = crc32c(part, checksum)
            self._make_durable(key)
            arrived = self._fs.info(self.path(key))["size"]
        if arrived != size:
            raise RemoteStorageError(f"{self.url}/{key}: {size} bytes were written, but the store has {arrived}")
        return ObjectInfo(size, checksum)

    def replace(self, key: str, content: bytes) -> None:
        """Write an object in place of an earlier object of the same key. In a local directory too, the earlier object
        stays until the new one is complete, even if the disk is full or the process crashes. Raises
        RemoteStorageError."""
        if not self._protocols & _LOCAL:
            self.write(key, [content])
            return
        written = f"{key}.new"
        self.write(written, [content])
        with self._translate_errors("write", key):
            os.replace(self.path(written), self.path(key))  # noqa: PTH105
            self._make_durable(key)

    def _make_durable(self, key: str) -> None:
        """Fsync the file and its directory, if the store is a local directory: its objects must survive a power cut
        too."""
        if self._protocols & _LOCAL:
            path = self.path(key)
            for name, flags in ((path, os.O_RDONLY), (os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)):  # noqa: PTH120
                fd = os.open(name, flags | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    # --- reading ---

    def read(self, key: str, info: ObjectInfo) -> bytes:
        """Return a whole small object, after a check of its size and checksum (`info`). Raises RemoteStorageError,
        CorruptBatchError."""
        with self._translate_errors("read", key):
            data = bytes(self._fs.cat_file(self.path(key)))
        if len(data) != info.size_bytes or crc32c(data) != info.crc32c:
            raise CorruptBatchError(
                f"{self.url}/{key} is damaged: {len(data)} bytes with checksum {crc32c(data):08x}, "
                f"{info.size_bytes} with {info.crc32c:08x} were written"
            )
        return data

    def read_unchecked(self, key: str) -> bytes:
        """Return a whole object whose checksum is not known. Raises RemoteStorageError."""
        with self._translate_errors("read", key):
            return bytes(self._fs.cat_file(self.path(key)))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the byte ranges [start, end), in parallel if the store can. Only their lengths are checked.

        Raises RemoteStorageError, CorruptBatchError (the object is shorter).
        """
        starts, ends = [r[0] for r in ranges], [r[1] for r in ranges]
        with self._translate_errors("read", key):
            contents = self._fs.cat_ranges([self.path(key)] * len(ranges), starts, ends, on_error="raise")
        parts = [bytes(part) for part in contents]
        for (start, end), part in zip(ranges, parts, strict=True):
            if len(part) != end - start:
                raise CorruptBatchError(
                    f"{self.url}/{key} is damaged: {len(part)} bytes at {start}, {end - start} are expected"
                )
        return parts

    # --- removing ---

    def remove(self, prefix: str, names: Iterable[str]) -> None:
        """Remove the objects `names` of a folder, in this order, and then the folder if it is empty. Missing objects
        are no error. Raises RemoteStorageError."""
        for name in names:
            key = f"{prefix}/{name}"
            with self._translate_errors("remove", key):
                try:
                    self._fs.rm_file(self.path(key))
                except FileNotFoundError:
                    continue
        if not self._protocols & _FLAT:
            self._remove_empty(prefix)

    def _remove_empty(self, prefix: str) -> None:
        """Remove the folder, and its parents up to the first that is not empty. Errors are ignored."""
        while prefix:
            try:
                self._fs.rmdir(self.path(prefix))
            except Exception:  # noqa: BLE001 - not empty, or this store has no such call: an empty folder does no harm
                return
            prefix = prefix.rpartition("/")[0]

    def manifests(self, prefix: str) -> list[str]:
        """Return the keys of the manifests below a folder. This lists the store: to adopt copies of other replicas, or
        to restore a lost journal.

        Raises RemoteStorageError."""
        with self._translate_errors("list", prefix):
            self._fs.invalidate_cache()
            try:
                paths = self._fs.find(self.path(prefix))
            except FileNotFoundError:
                return []
        names = [str(path) for path in paths]
        return sorted(n[n.index(prefix) :] for n in names if n.endswith("/manifest.json") and prefix in n)

    @contextmanager
    def _translate_errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except SparklogError:
            raise
        except Exception as e:
            raise RemoteStorageError(f"cannot {action} {self.url}/{key}: {type(e).__name__}: {e}") from e
