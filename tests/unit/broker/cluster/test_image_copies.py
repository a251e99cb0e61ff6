"""The copy of the cluster's metadata in a data directory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from sparklog_broker.cluster import image_copies
from sparklog_broker.cluster.image_copies import ImageCopies

from sparklog.errors import StorageError
from sparklog.metadata.image_copy import ImageCopy
from sparklog.replication.cluster_image import ClusterImage


class Timers:
    """Keeps what a loop is told to call later."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> SimpleNamespace:
        self.pending.append(call)
        return SimpleNamespace(cancel=lambda: self.pending.remove(call))

    def fire(self) -> None:
        due, self.pending = self.pending, []
        for call in due:
            call()


def run(work: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()
    try:
        done.set_result(work())
    except StorageError as e:
        done.set_exception(e)
    return done


def test_a_failed_write_is_tried_again_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[ImageCopy] = []
    failures = [StorageError("the disk is full"), StorageError("the disk is full")]

    def write(files: Any, directory: str, copy: ImageCopy) -> None:
        if failures:
            raise failures.pop()
        written.append(copy)

    monkeypatch.setattr(image_copies, "write_copy", write)
    timers, storage, config = Timers(), SimpleNamespace(cluster_id="c", run=run), SimpleNamespace(data_dir="d")
    copies = ImageCopies(config, timers, None, storage, {})  # type: ignore[arg-type]
    image = ClusterImage()
    copies.follow(image, [])
    timers.fire()
    assert not written
    timers.fire()
    assert [copy.image for copy in written] == [image]
    assert caplog.text.count("will be retried: the disk is full") == 2
    timers.fire()
    assert len(written) == 1  # nothing has changed since
    assert not timers.pending
