"""Writes a debug bundle with the parts that the options of `sparklog doctor` select."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparklog.cli.doctor import bundle_parts as parts
from sparklog.cli.doctor.bundle import FILE_MODE, Bundle
from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import CheckFinding
from sparklog.cli.doctor.scrub import Scrubber, secrets_of_environment, secrets_of_options
from sparklog.environment.clock import MachineClock
from sparklog.security.secrets import Secret

if TYPE_CHECKING:
    from sparklog_broker.config import BrokerConfig

    from sparklog.security.client_security import ClientSecurity, SecuritySettings


class Sources(NamedTuple):
    """The sources of a bundle's parts. A source that is None or empty has no part."""

    facts: Facts
    findings: list[CheckFinding]
    checks: list[str]
    """Names of all checks."""
    bootstrap_servers: str | None
    """Addresses of the cluster."""
    config: Path | None
    """Configuration file of a broker."""
    metrics: str
    """URL of a metrics page."""
    log_bytes: int
    """Size of the included end of each log file."""
    timeout_ms: int
    """Longest wait for a response, in ms."""
    settings: SecuritySettings | None = None
    """Security settings of the client, as its file has them."""
    security: ClientSecurity | None = None
    """Security settings of the client, resolved."""


def write_bundle(path: Path, sources: Sources, clock: MachineClock, environment: Mapping[str, str]) -> None:
    """Write a bundle, and print the progress on stderr. `path`: the archive. An existing file is replaced when the
    archive is complete. `environment`: environment variables; their secrets are removed from all parts. Raises OSError.
    """
    from sparklog.cli.destination import destination

    config = _config(sources.config)
    scrubber = Scrubber(secrets_of_sources(config, sources.security, sources.settings, environment))
    with destination(path) as out:
        os.fchmod(out.fileno(), FILE_MODE)
        bundle = Bundle(out, scrubber, clock, lambda line: print(f"  {line}", file=sys.stderr, flush=True))
        _fill(bundle, sources, config, environment)
        bundle.close({"made_ms": clock.now_ms(), "cluster": sources.bootstrap_servers, "config": sources.config})
    size = path.stat().st_size
    print(
        f"wrote {path}: {bundle.count} files, {size:,} bytes, without secrets; look into it before you send it",
        file=sys.stderr,
    )


def _fill(bundle: Bundle, sources: Sources, config: BrokerConfig | None, environment: Mapping[str, str]) -> None:
    parts.add_findings(bundle, sources.facts, sources.findings, sources.checks)
    parts.add_environment(bundle, environment)
    urls = [sources.metrics] if sources.metrics else []
    if sources.settings is not None:
        parts.add_client(bundle, sources.settings.items())
    if config is not None:
        parts.add_config(bundle, config.configured)
        if config.metrics_listen:
            urls.append(parts.metrics_url(config.metrics_listen, "127.0.0.1"))
    cluster = sources.facts.cluster
    if cluster is not None and sources.bootstrap_servers is not None:
        from sparklog.client.admin.admin import Admin

        with Admin(
            sources.bootstrap_servers,
            request_timeout_ms=sources.timeout_ms,
            security=sources.security,
            wait_for_broker=False,
        ) as admin:
            urls += parts.add_brokers(bundle, admin)
            parts.add_topics(bundle, admin, [topic.name for topic in cluster.topics])
    parts.add_metrics(bundle, urls, sources.timeout_ms / 1000)
    parts.add_logs(bundle, _logs(config), sources.log_bytes)


def _config(path: Path | None) -> BrokerConfig | None:
    """Return the configuration; None without a file, or if the file cannot be read, which a check reports."""
    from sparklog_broker.config import load_config

    from sparklog.errors import InvalidConfigError

    try:
        return None if path is None else load_config(path)
    except InvalidConfigError:
        return None


def secrets_of_sources(
    config: BrokerConfig | None,
    security: ClientSecurity | None,
    settings: SecuritySettings | None,
    environment: Mapping[str, str],
) -> list[Secret]:
    """Return all secrets in the given settings and variables, to be removed from the bundle."""
    from sparklog.security.secrets import is_sensitive

    secrets = secrets_of_environment(environment)
    if security is not None:
        secrets += security.secrets
    if settings is not None:
        secrets += [Secret(text) for name, text in settings.items() if is_sensitive(name)]
    if config is not None:
        secrets += [value for value in config.security.settings.values() if isinstance(value, Secret)]
        secrets += secrets_of_options(config.remote_log_storage_options)
    return secrets


def _logs(config: BrokerConfig | None) -> Iterable[Path]:
    for path in () if config is None else (config.log_file, config.audit_log_file):
        if path and config is not None:
            yield config.data_dir / path  # an absolute path is unchanged
