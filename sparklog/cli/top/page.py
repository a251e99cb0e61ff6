"""Fetches a broker's metrics page and parses it. Any server can answer at the address, so the text is checked."""

from __future__ import annotations

import math
from collections import defaultdict
from http.client import HTTPException
from urllib.parse import urlsplit

from sparklog.cli.top.samples import BrokerPage
from sparklog.errors import InvalidConfigError, InvalidRequestError

PAGE_BYTES_MAX = 64 * 1024 * 1024
Series = dict[str, list[tuple[dict[str, str], float]]]
"""Pairs of labels and value of each series, by the metric's name."""


def check_url(url: str) -> str:
    """Return the URL of a metrics page, with the path `/metrics` if `url` has no path. Raises InvalidConfigError."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise InvalidConfigError(f"metrics page {url!r}: an address is needed, as in http://127.0.0.1:9293/metrics")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def fetch_page(url: str, timeout_s: float, *, bytes_max: int = PAGE_BYTES_MAX) -> str:
    """Return the text of a metrics page. Raises InvalidRequestError if it cannot be fetched or is too large."""
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=timeout_s) as answer:
            data = answer.read(bytes_max + 1)
    except (OSError, HTTPException, ValueError) as e:
        raise InvalidRequestError(f"no metrics from {url}: {getattr(e, 'reason', e)}") from e
    if len(data) > bytes_max:
        raise InvalidRequestError(f"no metrics from {url}: more than {bytes_max} bytes")
    return bytes(data).decode("utf-8", "replace")


def read_series(text: str) -> Series:
    """Parse Prometheus text; values that are not finite are left out. Raises InvalidRequestError."""
    from prometheus_client.parser import text_string_to_metric_families

    series: Series = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    series[sample.name].append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as e:
        raise InvalidRequestError(f"the response is no metrics page: {e}") from e
    return dict(series)


def broker_page(series: Series) -> BrokerPage:
    """Return the values that `sparklog top` shows. Raises InvalidRequestError if the page is not of a sparklog broker,
    or if the broker is still starting."""
    (broker, _), *_ = series.get("kafka_broker_info") or [({}, 0.0)]
    (build, _), *_ = series.get("sparklog_build_info") or [({}, 0.0)]
    if not broker.get("id", "").isdecimal():
        reason = "the broker is still starting" if build else "it is not the page of a sparklog broker"
        raise InvalidRequestError(f"the metrics page has no numbers: {reason}")
    return BrokerPage(
        broker_id=int(broker["id"]),
        version=build.get("version", ""),
        time_ms=round(total(series, "sparklog_time_seconds") * 1000),
        requests_total=total(series, "sparklog_requests_total"),
        errors_total=total(series, "sparklog_request_errors_total"),
        connections=total(series, "sparklog_connections"),
        memory_used_bytes=total(series, "sparklog_request_memory_used_bytes"),
        memory_limit_bytes=total(series, "sparklog_request_memory_limit_bytes"),
        bytes_in=_by_topic(series, "kafka_server_brokertopicmetrics_bytesin_total"),
        bytes_out=_by_topic(series, "kafka_server_brokertopicmetrics_bytesout_total"),
        group_lags=_by_group(series, "kafka_consumergroup_lag"),
        group_offsets=_by_group(series, "kafka_consumergroup_current_offset"),
    )


def total(series: Series, name: str) -> float:
    """Return the sum of all series of a metric; 0 without series."""
    return sum(value for _, value in series.get(name, ()))


def _by_topic(series: Series, name: str) -> dict[str, float]:
    by_topic: dict[str, float] = defaultdict(float)
    for labels, value in series.get(name, ()):
        by_topic[labels.get("topic", "")] += value
    return dict(by_topic)


def _by_group(series: Series, name: str) -> dict[str, dict[str, int]]:
    """Return the sums over partitions, by group and topic."""
    by_group: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for labels, value in series.get(name, ()):
        by_group[labels.get("consumergroup", "")][labels.get("topic", "")] += int(value)
    return {group: dict(topics) for group, topics in by_group.items()}
