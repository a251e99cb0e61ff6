"""A process that keeps the leases of shared transactions as long as their owner process lives.

Spark runs the parts of a batch write in Python processes, and none of them lives as long as the write. So one of these
processes starts the keeper: `python -m sparklog.client.transactions.lease_keeper DRIVER_PID`. The keeper's standard
input has a line of JSON (`Lease`) for each transaction. The keeper renews each lease until the transaction has ended.
After the end of the driver, it aborts the open transactions. It ends with the driver, or when its input is closed and
no lease is left. If the keeper is killed as well, the leases expire.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.transactions.shared_transaction import (
    SharedTransaction,
    end_shared_transaction,
    renew_shared_transaction,
)
from sparklog.errors import SparklogError
from sparklog.security.client_security import SecuritySettings

log = logging.getLogger(__name__)

LEASE_MS = 40_000
"""Lease in ms, renewed after every fifth of it. The broker looks for expired leases every ten seconds, so it aborts a
lost transaction within a minute."""
RENEWAL_S = LEASE_MS / 5_000
POLL_INTERVAL_S = 1.0
"""Interval in s between checks that the driver lives."""
LEASES_MAX = 10_000
ONE_ATTEMPT = RetryPolicy.one_attempt(5_000)


class Lease(NamedTuple):
    """The transaction to keep, and its cluster. `security`: the settings as they were given. The keeper gets a lease as
    a line through a pipe, because other users could read an argument or a file."""

    bootstrap_servers: str
    app_id: str
    version: int
    run_id: str
    fencing_token: int
    security: tuple[tuple[str, str], ...] = ()

    @property
    def transaction(self) -> SharedTransaction:
        return SharedTransaction(self.app_id, self.version, self.run_id, self.fencing_token)

    @property
    def cluster(self) -> Cluster:
        return cluster(self.bootstrap_servers, SecuritySettings(dict(self.security)).resolve())

    @classmethod
    def decode(cls, line: str) -> Lease:
        """Read a lease from its line of JSON."""
        servers, app_id, version, run_id, fencing_token, security = json.loads(line)
        return cls(servers, app_id, version, run_id, fencing_token, tuple((name, value) for name, value in security))


class Process(NamedTuple):
    """A process of this machine, distinguished from a later process with the same number."""

    pid: int
    started: str

    @classmethod
    def from_pid(cls, pid: int) -> Process | None:
        """Return the process; None: it does not exist, or it has ended and its parent has not collected it yet."""
        status = _stat(pid)
        return None if status is None or status.state in "ZX" else cls(pid, status.started)

    @property
    def lives(self) -> bool:
        return Process.from_pid(self.pid) == self


class _Stat(NamedTuple):
    name: str
    state: str
    parent: int
    started: str


def driver_of(pid: int) -> Process | None:
    """Return the process that a Python process of Spark's works for: its nearest ancestor that is not Python. None:
    unknown."""
    while (status := _stat(pid)) is not None and status.parent > 0:
        pid = status.parent
        parent = _stat(pid)
        if parent is not None and not parent.name.lower().startswith("python"):
            return Process.from_pid(pid)
    return None


def _stat(pid: int) -> _Stat | None:
    """Return the system's status of a process; None: it does not exist."""
    if not Path("/proc/self/stat").exists():
        return _stat_of_ps(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # the name may hold any character
    fields = rest.split()
    return _Stat(name, fields[0], int(fields[1]), fields[19])


def _stat_of_ps(pid: int) -> _Stat | None:
    """Return the status from `ps`, for systems without /proc."""
    command = ["ps", "-o", "state=,ppid=,lstart=,comm=", "-p", str(pid)]
    fields = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split(None, 7)
    if len(fields) < 8:
        return None
    return _Stat(Path(fields[7].strip()).name, fields[0][0], int(fields[1]), " ".join(fields[2:7]))


class Keeper:
    """The leases of one driver's transactions. The process ends when `keep_until_gone` returns."""

    def __init__(
        self, driver: Process, *, renewal_s: float = RENEWAL_S, poll_interval_s: float = POLL_INTERVAL_S
    ) -> None:
        self._driver = driver
        self._renewal_s = renewal_s
        self._look_s = poll_interval_s
        self._lease_queue: queue.Queue[Lease | None] = queue.Queue(LEASES_MAX)
        self._leases: set[Lease] = set()

    def read(self, lines: Iterable[str]) -> None:
        """Take leases up to the end of `lines`."""
        for line in lines:
            self._lease_queue.put(Lease.decode(line))
        self._lease_queue.put(None)

    def keep_until_gone(self) -> None:
        """Renew the leases until no lease is left and the input is closed. If the driver ends before that, abort the
        open transactions and return."""
        closed = False
        renew_at_s = time.monotonic() + self._renewal_s
        while self._driver.lives and (self._leases or not closed):
            try:
                lease = self._lease_queue.get(timeout=self._look_s)
                closed = closed or lease is None
                if lease is not None and len(self._leases) < LEASES_MAX:
                    self._leases.add(lease)
                elif lease is not None:
                    log.warning("%s is not renewed: %d other writes have leases", lease.app_id, LEASES_MAX)
            except queue.Empty:
                pass
            if time.monotonic() >= renew_at_s:
                self._leases = {lease for lease in self._leases if self._renew(lease)}
                renew_at_s = time.monotonic() + self._renewal_s
        if not self._driver.lives:
            self._abort()

    def _renew(self, lease: Lease) -> bool:
        """Renew a lease. Returns True if the lease is still needed."""
        try:
            return renew_shared_transaction(lease.cluster, lease.transaction, policy=ONE_ATTEMPT)
        except SparklogError as e:
            log.info("the lease of %s could not be renewed and will be retried: %s", lease.app_id, e)
            return True

    def _abort(self) -> None:
        """Abort the open transactions, which no process will commit after the end of the driver."""
        while not self._lease_queue.empty():
            lease = self._lease_queue.get()
            if lease is not None:
                self._leases.add(lease)
        for lease in self._leases:
            try:
                end_shared_transaction(lease.cluster, lease.transaction, committed=False, policy=ONE_ATTEMPT)
            except SparklogError as e:
                log.warning("%s could not be aborted; it ends when its lease expires: %s", lease.app_id, e)


def main(driver_pid: str) -> None:
    """Keep the leases of the driver with this process id; return at once if the process does not exist."""
    driver = Process.from_pid(int(driver_pid))
    if driver is None:
        return
    keeper = Keeper(driver)
    threading.Thread(target=keeper.read, args=(sys.stdin,), daemon=True).start()
    keeper.keep_until_gone()


if __name__ == "__main__":
    main(*sys.argv[1:])
