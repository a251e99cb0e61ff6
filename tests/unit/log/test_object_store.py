"""Objects in a directory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sparklog.errors import RemoteStorageError
from sparklog.log.tiering.object_store import ObjectStore


def test_a_replaced_object_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(tmp_path.as_uri())
    store.replace("latest", b"first")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(RemoteStorageError, match="No space left"):
            store.replace("latest", b"second")
        assert store.read_unchecked("latest") == b"first"
    store.replace("latest", b"third")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"latest": b"third"}
    store = ObjectStore("memory://replaced")
    store.replace("latest", b"first")
    store.replace("latest", b"second")
    assert store.read_unchecked("latest") == b"second"
