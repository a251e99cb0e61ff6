"""Collects the facts of a broker's metrics page, clock and configuration file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from sparklog.cli.doctor.facts import ClockFacts, ConfigFacts, PageFacts
from sparklog.cli.top.page import Series, fetch_page, read_series, total
from sparklog.environment.clock import MachineClock
from sparklog.errors import InvalidConfigError, InvalidRequestError
from sparklog.settings import Scope, settings_of


def look_at_page(url: str, clock: MachineClock, timeout_s: float) -> tuple[PageFacts, ClockFacts | None]:
    """Return the facts of the page, and the lead of the broker's clock; None if the page has no time."""
    host = urlsplit(url).hostname or ""
    before_ms = clock.now_ms()
    try:
        series = read_series(fetch_page(url, timeout_s))
        facts = page_facts(url, host, series)
    except InvalidRequestError as e:
        return PageFacts(url, host, str(e)), None
    return facts, clock_facts(series, before_ms, clock.now_ms())


def clock_facts(series: Series, before_ms: int, after_ms: int) -> ClockFacts | None:
    """Return the lead of the broker's clock; None if the page has no time.

    `before_ms` and `after_ms` are the times of this machine's clock before the request and after the response.
    """
    broker_ms = round(total(series, "sparklog_time_seconds") * 1000)
    if broker_ms <= 0:
        return None
    if broker_ms > after_ms:
        return ClockFacts(broker_ms - after_ms)
    return ClockFacts(min(0, broker_ms - before_ms))


def page_facts(url: str, host: str, series: Series) -> PageFacts:
    """Return the facts of a metrics page. Raises InvalidRequestError if the page is not of a sparklog broker."""
    if "sparklog_ready" not in series:
        raise InvalidRequestError(f"{url} is not the metrics page of a sparklog broker")
    return PageFacts(
        url,
        host,
        ready=total(series, "sparklog_ready") > 0,
        open_files=round(total(series, "process_open_fds")) if "process_open_fds" in series else -1,
        open_files_max=round(total(series, "process_max_fds")) if "process_max_fds" in series else -1,
        memory_used_bytes=total(series, "sparklog_request_memory_used_bytes"),
        memory_limit_bytes=total(series, "sparklog_request_memory_limit_bytes"),
        memory_waiting=round(total(series, "sparklog_request_memory_waiting")),
        failed_directories=tuple(
            labels.get("directory", "?") for labels, value in series.get("sparklog_log_directory_failed", ()) if value
        ),
        fsync_failures=round(total(series, "sparklog_fsync_failures_total")),
        cleaner_failing=round(total(series, "sparklog_cleaner_failing_logs")),
        tier_failing=round(total(series, "sparklog_tier_failing_partitions")),
        has_older_store=bool(total(series, "sparklog_zookeeper_is_older")),
        put_aside=round(total(series, "sparklog_topics_put_aside")),
        refused_connections=round(total(series, "sparklog_connections_refused_total")),
    )


def look_at_config(path: Path) -> tuple[ConfigFacts, Path | None, tuple[Path, ...]]:
    """Return the facts of a configuration file, its data directory and its log directories.

    The data directory is None if the file cannot be read.
    """
    from sparklog_broker.config import load_config, parse_address

    try:
        config = load_config(path)
    except InvalidConfigError as e:
        return ConfigFacts(str(path), str(e)), None, ()
    options = config.remote_log_storage_options.strip()
    largest = settings_of(Scope.TOPIC)["max.message.bytes"]
    facts = ConfigFacts(
        str(path),
        listen_host=config.address[0],
        metrics_host=parse_address(config.metrics_listen)[0] if config.metrics_listen else "",
        socket_request_max_bytes=config.socket_request_max_bytes,
        queued_max_request_bytes=config.queued_max_request_bytes,
        max_message_bytes=int(config.topic_defaults.get(largest.name, largest.default)),
        readable_secrets=options.startswith("{") and bool(path.stat().st_mode & 0o004),
    )
    return facts, config.data_dir, config.log_dirs
