"""The forms of a scrape's answer, and which one a request gets."""

from __future__ import annotations

from enum import Enum


class Exposition(Enum):
    """The value is the content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def wanted_by(accept: str) -> Exposition:
    """The form for a request's `Accept` header: text unless OpenMetrics is asked for."""
    asked = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return Exposition.OPENMETRICS if "application/openmetrics-text" in asked else Exposition.TEXT
