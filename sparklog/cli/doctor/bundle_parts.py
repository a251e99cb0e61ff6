"""Adds the parts of a debug bundle: settings, versions, metrics, topics, the end of the logs, the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparklog.cli.doctor.bundle import Bundle
from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import CheckFinding
from sparklog.cli.doctor.report import as_json, as_text
from sparklog.environment.files import OddFileError, open_regular
from sparklog.errors import SparklogError
from sparklog.security.secrets import HIDDEN
from sparklog.version import __version__

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin

PACKAGES = (
    "sparklog", "pyarrow", "msgspec", "pyspark", "duckdb", "kazoo", "deltalake", "fsspec", "s3fs", "polars", "pandas", "numpy", "typer",
    "prometheus-client", "cryptography", "tornado",
)  # fmt: skip
"""Packages whose versions the bundle names."""
VARIABLES = (
    "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PATH", "JAVA_HOME", "SPARK_HOME", "PYTHONPATH", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "HOSTNAME",
    "SPARKLOG_BOOTSTRAP_SERVERS", "SPARKLOG_COMMAND_CONFIG", "SPARKLOG_PROFILE", "SPARKLOG_TIMEOUT", "SPARKLOG_DEBUG",
)  # fmt: skip
"""Environment variables whose values the bundle has. It has only the names of the others."""
_LIMITS = ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_MEMLOCK", "RLIMIT_NPROC", "RLIMIT_CORE", "RLIMIT_FSIZE")
_FILES = (
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/self/cgroup",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/cpu.max",
)
_FILE_BYTES_MAX = 16 * 1024


def add_findings(bundle: Bundle, facts: Facts, findings: list[CheckFinding], checks: list[str]) -> None:
    """Add the findings, and all facts that the checks have examined."""
    bundle.add_text("findings.txt", "\n".join(as_text(findings, facts, len(checks), colours=False)) + "\n")
    bundle.add_json("findings.json", as_json(findings, facts, checks))
    bundle.add_json("facts.json", facts)


def add_environment(bundle: Bundle, environment: Mapping[str, str]) -> None:
    """Add facts about this machine and this process."""
    bundle.add_json(
        "environment.json",
        {
            "sparklog": __version__,
            "python": sys.version,
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "packages": {name: version for name in PACKAGES if (version := _version(name))},
            "limits": _limits(),
            "variables": {name: environment[name] for name in VARIABLES if name in environment},
            "other_variables": sorted(name for name in environment if name not in VARIABLES),
            "files": {path: text for path in _FILES if (text := _head(Path(path)))},
        },
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _limits() -> dict[str, list[int]]:
    import resource

    return {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS if hasattr(resource, name)}


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def add_client(bundle: Bundle, settings: Iterable[tuple[str, str]]) -> None:
    """Add the client's security settings. The bundle hides the values of settings with sensitive names."""
    bundle.add_json("settings/client.json", dict(settings))


def add_config(bundle: Bundle, configured: Mapping[str, object]) -> None:
    """Add the settings of a broker's configuration file, `BrokerConfig.configured`, in which secrets are None."""
    bundle.add_json("settings/file.json", {name: _shown(value) for name, value in configured.items()})


def add_brokers(bundle: Bundle, admin: Admin) -> list[str]:
    """Add the cluster's brokers and the settings of each broker. Brokers do not send the values of secrets. Returns
    URLs of the brokers' metrics pages."""
    urls = []
    try:
        cluster = admin.describe_cluster()
    except SparklogError as e:
        bundle.miss("cluster.json", str(e))
        return []
    bundle.add_json("cluster.json", asdict(cluster))
    for broker in cluster.brokers:
        name = f"settings/broker-{broker.broker_id}.json"
        try:
            settings = admin.describe_broker(broker.broker_id)
        except SparklogError as e:
            bundle.miss(name, str(e))
            continue
        bundle.add_json(name, {one.name: {**one._asdict(), "value": _shown(one.value)} for one in settings.values()})
        if (listen := settings["metrics.listen"].value) and not listen.endswith(":0"):
            urls.append(metrics_url(listen, broker.host))
    return urls


def _shown(value: object) -> object:
    return HIDDEN if value is None else value


def add_topics(bundle: Bundle, admin: Admin, names: list[str]) -> None:
    """Add the description of each topic: its settings, schema and partitions."""
    try:
        topics = admin.describe_topics(names)
    except SparklogError as e:
        bundle.miss("topics.json", str(e))
        return
    bundle.add_json(
        "topics.json",
        {
            name: {
                "id": topic.topic_id,
                "kind": topic.kind,
                "settings": topic.configs,
                "broker_defaults": topic.broker_defaults,
                "key_columns": topic.key_columns,
                "timestamp_column": topic.timestamp_column,
                "schema": str(topic.schema),
                "created_ms": topic.created_ms,
                "partitions": [asdict(p) for p in topic.partition_details],
            }
            for name, topic in topics.items()
        },
    )


def add_metrics(bundle: Bundle, urls: Iterable[str], timeout_s: float) -> None:
    """Add the metrics page of each URL."""
    from sparklog.cli.top.page import fetch_page
    from sparklog.errors import InvalidRequestError

    for url in dict.fromkeys(urls):
        place = urlsplit(url)
        name = f"metrics/{place.hostname}-{place.port or 80}.txt"
        try:
            bundle.add_text(name, fetch_page(url, timeout_s))
        except InvalidRequestError as e:
            bundle.miss(name, str(e))


def metrics_url(listen: str, host: str) -> str:
    """Return the URL of a metrics page for `metrics.listen`, with `host` if the broker listens on all addresses."""
    from sparklog.security.listeners import is_any_address

    name, _, port = listen.rpartition(":")
    return f"http://{host if is_any_address(name.strip('[]')) else name}:{port}/metrics"


def add_logs(bundle: Bundle, paths: Iterable[Path], bytes_max: int) -> None:
    """Add the last `bytes_max` bytes of each log file, without an incomplete first line."""
    for path in dict.fromkeys(paths):
        name = f"logs/{path.parent.name}-{path.name}"
        try:
            bundle.add_text(name, tail(path, bytes_max))
        except (OSError, OddFileError) as e:
            bundle.miss(name, f"{path} cannot be read: {e}")


def tail(path: Path, bytes_max: int) -> str:
    """Return the last `bytes_max` bytes of a file, without an incomplete first line. Raises OSError, OddFileError."""
    with open(open_regular(path), "rb") as file:  # noqa: PTH123  (a descriptor)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - bytes_max))
        data = file.read(bytes_max)
    if size > bytes_max:
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace")
