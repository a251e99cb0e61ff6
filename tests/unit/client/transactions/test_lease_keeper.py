"""The keeper of leases: the watched process, the renewals and the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.client.net.cluster import forget
from sparklog.client.transactions import lease_keeper
from sparklog.client.transactions.lease_keeper import Keeper, Lease, Process, driver_of
from sparklog.client.transactions.shared_transaction import SharedTransaction
from sparklog.errors import BrokerNotAvailableError
from sparklog.security.client_security import PLAINTEXT, SecuritySettings

FIRST, SECOND = (Lease("127.0.0.1:1", name, 0, "run", 7) for name in ("first", "second"))


def test_a_lease_comes_with_how_to_connect() -> None:
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "etl"}
    security["sasl.password"] = "hush-7261"
    lease = FIRST._replace(security=SecuritySettings(security).items())
    told = Lease.decode(json.dumps(lease))
    assert told == lease
    assert told.cluster.security.password.reveal() == "hush-7261"
    assert Lease.decode(json.dumps(FIRST)).cluster.security == PLAINTEXT
    forget("127.0.0.1:1")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no Python."""
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


def test_an_ended_process_is_noticed(sleeper: subprocess.Popen[bytes]) -> None:
    found = Process.from_pid(sleeper.pid)
    assert found is not None and found.lives
    assert not found._replace(started="another time").lives, "another one with its number"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie until it is waited for
    assert not found.lives and Process.from_pid(sleeper.pid) is None
    sleeper.wait()
    assert not found.lives


@pytest.mark.parametrize("name", ["_stat", "_stat_of_ps"])
def test_both_ways_to_look_say_the_same(name: str, sleeper: subprocess.Popen[bytes]) -> None:
    if name == "_stat_of_ps" and not os.path.exists("/bin/ps"):  # noqa: PTH110
        pytest.skip("no ps here")
    found = getattr(lease_keeper, name)(sleeper.pid)
    assert (found.name, found.parent, found.state in "RSD") == ("sleep", os.getpid(), True)
    assert getattr(lease_keeper, name)(2**22 + 5) is None


def test_the_driver_is_the_nearest_ancestor_that_is_not_python() -> None:
    code = (
        "import os; from sparklog.client.transactions.lease_keeper import driver_of; print(driver_of(os.getpid()).pid)"
    )
    forks = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {code!r}], text=True))"
    shell = subprocess.Popen(
        ["sh", "-c", f'"{sys.executable}" -c "$CODE"; true'], env=os.environ | {"CODE": forks}, stdout=subprocess.PIPE
    )
    out, _ = shell.communicate(timeout=60)
    assert int(out) == shell.pid
    assert driver_of(2**22 + 5) is None


class Broker:
    """A broker that records its requests and the ended transactions."""

    def __init__(self, sleeper: subprocess.Popen[bytes]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.ended: set[str] = set()
        self.sleeper = sleeper

    def renew(self, cluster: Any, transaction: SharedTransaction, *, policy: Any) -> bool:
        self.asked.append(("renew", transaction.app_id))
        if len(self.asked) == 1:
            raise BrokerNotAvailableError("for a moment")
        if len(self.asked) == 5:
            self.ended.add("first")
        if len(self.asked) == 10:
            self.sleeper.kill()
        return transaction.app_id not in self.ended

    def end(self, cluster: Any, transaction: SharedTransaction, *, committed: bool, policy: Any) -> None:
        assert not committed
        self.asked.append(("abort", transaction.app_id))


@pytest.fixture
def broker(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(sleeper)
    monkeypatch.setattr(lease_keeper, "renew_shared_transaction", made.renew)
    monkeypatch.setattr(lease_keeper, "end_shared_transaction", made.end)
    return made


def test_open_transactions_are_renewed_until_the_driver_is_gone_and_then_aborted(
    broker: Broker, sleeper: subprocess.Popen[bytes]
) -> None:
    driver = Process.from_pid(sleeper.pid)
    assert driver is not None
    keeper = Keeper(driver, renewal_s=0.0, poll_interval_s=0.001)
    keeper.read(json.dumps(lease) for lease in (FIRST, SECOND))
    keeper.keep_until_gone()
    renewed = [name for what, name in broker.asked if what == "renew"]
    assert renewed.count("first") < renewed.count("second")
    assert [name for what, name in broker.asked if what == "abort"] == ["second"]


def test_it_ends_when_all_has_ended(broker: Broker, sleeper: subprocess.Popen[bytes]) -> None:
    driver = Process.from_pid(sleeper.pid)
    assert driver is not None
    keeper = Keeper(driver, renewal_s=0.0, poll_interval_s=0.001)
    keeper.read([json.dumps(FIRST)])
    keeper.keep_until_gone()
    assert broker.asked == [("renew", "first")] * 5
