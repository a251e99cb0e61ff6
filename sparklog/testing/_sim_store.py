"""An object store in memory for simulations of tiering. It outlives brokers. Its calls fail on request, and a failed
write can have stored its object.

`SimStore` is one store; its `url` is the value for a broker's `remote.log.storage.url`. The store is an fsspec file
system of the protocol `simstore`, so that a simulation runs all of the broker's code above fsspec.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

PROTOCOL = "simstore"
_stores: dict[str, SimStore] = {}


class SimStoreError(OSError):
    """The error of a call for which `SimStore.fault` returns True."""


class SimStore:
    """One store: objects by their keys. `name` is part of the URL, which is valid until the end of the `with` block."""

    def __init__(self, name: str = "store") -> None:
        self.objects: dict[str, bytes] = {}
        self.fault: Callable[[str], bool] = lambda _operation: False
        """Function that returns True if a call of an operation fails. Operations: "write", "written" (fails after the
        object is stored), "read", "remove", "list"."""
        self.writes = 0
        """Number of stored objects, counting repeated writes."""
        self._name = name
        _stores[self._name] = self

    @property
    def url(self) -> str:
        return f"{PROTOCOL}://{self._name}/tier"

    def __enter__(self) -> SimStore:
        return self

    def __exit__(self, *_: object) -> None:
        _stores.pop(self._name, None)

    def called(self, operation: str) -> None:
        """Raise SimStoreError if `fault` returns True for this operation."""
        if self.fault(operation):
            raise SimStoreError(f"the store does not answer ({operation})")


class _Upload(io.BytesIO):
    """A file for writing; `close` stores the object."""

    def __init__(self, store: SimStore, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.called("write")
            self._store.objects[self._key] = data
            self._store.writes += 1
            self._store.called("written")


class SimStoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The file system that fsspec creates for a `simstore://` URL."""

    protocol = PROTOCOL
    cachable = False

    def _of(self, path: str) -> tuple[SimStore, str]:
        path = self._strip_protocol(path)
        return _stores[path.partition("/")[0]], path

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        store, key = self._of(path)
        return _Upload(store, key) if "w" in mode else io.BytesIO(self.cat_file(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        store, key = self._of(path)
        store.called("read")
        if key not in store.objects:
            raise FileNotFoundError(path)
        return {"name": key, "size": len(store.objects[key]), "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        store, key = self._of(path)
        store.called("read")
        if key not in store.objects:
            raise FileNotFoundError(path)
        return store.objects[key][start:end]

    def rm_file(self, path: str) -> None:
        store, key = self._of(path)
        store.called("remove")
        if store.objects.pop(key, None) is None:
            raise FileNotFoundError(path)

    def find(self, path: str, **_: Any) -> list[str]:
        store, key = self._of(path)
        store.called("list")
        return sorted(k for k in store.objects if k.startswith(key.rstrip("/") + "/"))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, because the store has no folders."""

    def rmdir(self, path: str) -> None:
        raise SimStoreError("it has no folders")


fsspec.register_implementation(PROTOCOL, SimStoreFileSystem, clobber=True)
