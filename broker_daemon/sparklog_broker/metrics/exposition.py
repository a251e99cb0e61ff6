"""The formats of a scrape, and the choice between them."""

from __future__ import annotations

from enum import Enum


class Exposition(Enum):
    """A format. The value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def accepted_by(accept: str) -> Exposition:
    """Return the format for a request's `Accept` header: text unless it names OpenMetrics."""
    media_types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return Exposition.OPENMETRICS if "application/openmetrics-text" in media_types else Exposition.TEXT
