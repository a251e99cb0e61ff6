"""`start_local`: brokers of their own for notebooks, demos and tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, overload

from sparklog.client.local import START_TIMEOUT_S, LocalBroker, start_broker
from sparklog.client.local_cluster import LocalCluster, check_count, start_cluster

__all__ = ["LocalBroker", "LocalCluster", "start_local"]


@overload
def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: Literal[1] = 1,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalBroker: ...


@overload
def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: int,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalBroker | LocalCluster: ...


def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: int = 1,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalBroker | LocalCluster:
    """Starts a broker as a process of its own and waits until it listens.

    `data_dir` None: a temporary directory that `stop` removes. `listen` port 0: any free port. `settings`: broker
    settings, and defaults of topic settings with `topic.` before their name. Other than a broker in earnest it keeps
    records for ever unless you say so (`topic.retention.ms`): what notebooks replay is often years old. Use it in a
    `with` block; it stops at the end of the block, or with this process, however that ends; a temporary directory goes
    with it. In a forked child it is the parent's: `stop` and `kill` do nothing there.

    Raises BrokerNotAvailableError with the broker's own words if it does not start, or not within `timeout_s`.

    `brokers` above 1: a cluster of so many with a ZooKeeper (a LocalCluster), for which Java, PySpark and
    `sparklog[cluster]` are needed; `listen` does not count then. Raises InvalidConfigError if something is missing.
    """
    check_count(brokers)
    if brokers == 1:
        return start_broker(data_dir, listen, settings=settings, timeout_s=timeout_s)
    return start_cluster(brokers, data_dir, settings=settings, timeout_s=timeout_s)
