"""Leases of batch writes: if the driver is gone, its write is aborted after the lease and not only after the timeout.

Until then readers with read_committed wait. A separate process (`sparklog.client.transactions.lease_keeper`) renews the
lease as long as the driver's JVM lives, also before a job's first task writes and between two tasks. Streams have no
leases: the next start of a query ends its open transactions.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading

from pyspark_sparklog.options.cluster_address import ClusterAddress
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.transactions.lease_keeper import LEASE_MS, Lease, driver_of
from sparklog.client.transactions.shared_transaction import SharedTransaction, renew_shared_transaction

log = logging.getLogger("pyspark_sparklog")


class LeaseKeepers:
    """The lease keeper's process, which this process starts at its first batch write and uses for all later ones.

    The keeper outlives this process. So there is no `Popen`, which would have to wait for its end, but the pipe alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe = -1
        """The descriptor that the keeper reads; -1 without a keeper."""

    def keep(self, address: ClusterAddress, transaction: SharedTransaction, wait_ms: int) -> int:
        """Start the transaction's lease, which the keeper renews as long as the driver lives. Returns the lease's
        length in ms.

        Returns 0 if the transaction has no lease: the keeper cannot be started (because the driver's process is not
        found, for example). Raises SparklogError if the broker refuses the lease.
        """
        renew_shared_transaction(address.connect(), transaction, policy=RetryPolicy(timeout_ms=wait_ms))
        try:
            with self._lock:
                self._announce(Lease(address.bootstrap_servers, *transaction, security=address.security.items()))
        except OSError as e:
            log.warning("the write has no lease: if the driver is killed, only the transaction timeout ends it: %s", e)
            return 0
        return LEASE_MS

    def _announce(self, lease: Lease) -> None:
        """Send a lease to the keeper, which is started if necessary. Raises OSError if that fails."""
        line = f"{json.dumps(lease)}\n".encode()
        if self._pipe >= 0:
            try:
                return _write(self._pipe, line)
            except BrokenPipeError:  # the keeper has ended
                os.close(self._pipe)
                self._pipe = -1
        self._pipe = _start()
        return _write(self._pipe, line)


def _write(pipe: int, line: bytes) -> None:
    while line:
        line = line[os.write(pipe, line) :]


def _start() -> int:
    """Start a keeper. Returns the descriptor that it reads. Raises OSError."""
    driver = driver_of(os.getpid())
    if driver is None:
        raise ProcessLookupError("cannot determine the driver's process")
    command = [sys.executable, "-m", "sparklog.client.transactions.lease_keeper", str(driver.pid)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    read_end, write_end = os.pipe()
    try:
        streams = [(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        # Spark ends all processes of its daemon's group; this one outlives them until the driver is gone
        os.posix_spawn(command[0], command, environment, file_actions=streams, setsid=True)
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return write_end


lease_keepers = LeaseKeepers()
