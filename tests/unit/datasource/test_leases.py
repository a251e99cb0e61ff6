"""The driver's side of leases: one keeper for all batch writes of a process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.sink import leases

from sparklog.client.transactions.lease_keeper import LEASE_MS, Process, driver_of
from sparklog.client.transactions.shared_transaction import SharedTransaction
from sparklog.security.client_security import SecuritySettings
from tests.support.waiting import until


def test_one_keeper_gets_all_leases_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "keeper"
    program.write_text(f'#!/bin/sh\necho "$$ $3" >> {tmp_path}/starts\nexec cat >> {tmp_path}/lines\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(leases, "renew_shared_transaction", lambda *_, **__: True)
    keepers = leases.LeaseKeepers()
    address = ClusterAddress("127.0.0.1:1", SecuritySettings({}))

    def starts() -> list[tuple[int, int]]:
        lines = (tmp_path / "starts").read_text().splitlines()
        return [(int(pid), int(driver)) for pid, driver in map(str.split, lines)]

    def keep(app_id: str) -> None:
        assert keepers.keep(address, SharedTransaction(app_id, 0, "run", 7), 1_000) == LEASE_MS
        until(lambda: app_id in (tmp_path / "lines").read_text(), "the keeper has the lease", passing=(OSError,))

    keep("first")
    keep("second")
    ((pid, driver),) = starts()
    own = driver_of(os.getpid())
    assert own is not None and driver == own.pid
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: Process.from_pid(pid) is None, "the keeper has ended")
    keep("third")
    assert len(starts()) == 2
    lines: list[Any] = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line[1] for line in lines] == ["first", "second", "third"]
    os.close(keepers._pipe)  # the second one ends
