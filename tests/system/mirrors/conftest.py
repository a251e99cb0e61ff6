"""Fixtures of mirrors: the cluster that gets the copies, the Admins of both sides, and a worker that tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.waiting import START_S


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """A broker that starts no worker. It has a gateway if the module sets NEEDS_GATEWAY."""
    needs_gateway = getattr(request.module, "NEEDS_GATEWAY", False)
    settings = {"mirror.worker.enable": False}
    with sparklog.start_local(timeout_s=START_S, kafka=needs_gateway, settings=settings) as local:
        yield local


@pytest.fixture
def admin(target: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(target.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def source_admin(source: LocalBroker) -> Iterator[sparklog.Admin]:
    """Admin of the module's own fixture `source`."""
    with sparklog.Admin(source.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def worker(target: LocalBroker) -> Iterator[MirrorWorker]:
    opened = MirrorWorker(target.bootstrap_servers)
    yield opened
    opened.close()
