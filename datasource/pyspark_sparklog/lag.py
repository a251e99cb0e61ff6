"""The lag of a streaming query: three numbers that Spark's Kafka source reports as metrics.

A data source in Python has no metrics, so they are computed from a query's progress.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from sparklog.errors import InvalidConfigError


def offsets_behind_latest(source: Any) -> dict[str, str]:
    """Compute the lag of a streaming query over its partitions.

    Args:
        source: A source of the query's progress: `query.lastProgress["sources"][0]`, or in a StreamingQueryListener
            `event.progress.sources[0]`.

    Returns:
        `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest` as texts. Empty if the progress
            lacks the ends of the topics: before the first batch, and before Spark 4.2.

    Raises:
        InvalidConfigError: `source` is not a source with Kafka's offsets.

    Example:
        ```python
        offsets_behind_latest(query.lastProgress["sources"][0])["maxOffsetsBehindLatest"]
        ```
    """
    latest, end = _offsets(source, "latestOffset"), _offsets(source, "endOffset")
    if not latest or not end:
        return {}
    behind = [
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    ]
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }


def _offsets(source: Any, name: str) -> dict[str, dict[str, int]]:
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    try:
        parsed = _parse(value) if isinstance(value, str) else value
        return {
            topic: {partition: _offset(offset) for partition, offset in partitions.items()}
            for topic, partitions in (parsed or {}).items()
            if partitions and not topic.startswith("$")
        }
    except (ValueError, TypeError, AttributeError, SyntaxError) as e:
        raise InvalidConfigError(f"{name} = {value!r} are not offsets of sparklog's source") from e


def _offset(value: Any) -> int:
    if type(value) is not int:  # `int` would take true for 1
        raise TypeError(f"{value!r} is no offset")
    return value


def _parse(text: str) -> Any:
    """Parse offsets as JSON, or as the Python literal that PySpark 4.0 and 4.1 report in place of JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)
