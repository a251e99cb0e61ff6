"""`start_local`: starts local brokers for notebooks, demos and tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, overload

from sparklog.client.local import START_TIMEOUT_S, LocalBroker, start_broker
from sparklog.client.local_cluster import LocalCluster, check_count, start_cluster
from sparklog.client.net import arguments as arg

__all__ = ["LocalBroker", "LocalCluster", "start_local"]


def _directory(argument: str, value: object) -> str | os.PathLike[str]:
    """Return the path of a directory."""
    if not isinstance(value, str | os.PathLike):
        arg.refuse(argument, value, "the path of a directory is needed; brokers=3 starts three brokers")
    return value


@overload
def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: Literal[1] = 1,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    kafka: bool = False,
) -> LocalBroker: ...


@overload
def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: int,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    kafka: bool = False,
) -> LocalBroker | LocalCluster: ...


@arg.takes(
    data_dir=arg.optional(_directory), listen=arg.text, settings=arg.optional(arg.mapping(arg.text, arg.anything))
)
def start_local(
    data_dir: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    *,
    brokers: int = 1,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    kafka: bool = False,
) -> LocalBroker | LocalCluster:
    """Start a broker in a process of its own and wait until it listens.

    Unlike a production broker it keeps records forever, because notebooks often replay old records; set
    `topic.retention.ms` for another limit. Use it in a `with` block. The broker stops at the end of the block, or with
    this process, however the process ends. In a forked child the broker belongs to the parent: `stop` and `kill` do
    nothing there.

    Args:
        data_dir: Directory for the data. None: a temporary directory, which `stop` removes.
        listen: HOST:PORT to listen on; port 0 takes any free port. It has no effect with several brokers.
        brokers: Number of brokers. Above 1 a cluster with a ZooKeeper is started, which needs Java, PySpark and
            `sparklog[cluster]`.
        settings: Broker settings by their dotted names, and defaults of topic settings with the prefix `topic.`. None:
            the defaults.
        timeout_s: The longest wait for the start of each broker in seconds.
        kafka: True starts a gateway for Kafka's clients beside each broker; `kafka_bootstrap_servers` has the address.
            With `sparklog[schemas]` installed, `schema_registry_url` has the address of the schema registry.

    Returns:
        The running broker, or with several brokers the running cluster.

    Raises:
        BrokerNotAvailableError: A broker did not start, or not within `timeout_s`. The message has the broker's last
            lines.
        InvalidConfigError: `brokers` is out of bounds, `settings` has a setting that has a parameter here, or Java,
            PySpark or `sparklog[cluster]` is missing.

    Example:
        ```python
        with sparklog.start_local() as broker:
            admin = sparklog.Admin(broker.bootstrap_servers)
        ```
    """
    check_count(brokers)
    if brokers == 1:
        return start_broker(data_dir, listen, settings=settings, timeout_s=timeout_s, kafka=kafka)
    return start_cluster(brokers, data_dir, settings=settings, timeout_s=timeout_s, kafka=kafka)
