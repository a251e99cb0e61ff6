"""Whether the broker serves: what `/health/ready` says."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """Of a broker's life; the value is what the page says."""

    RECOVERING = "not ready: the logs are being opened and checked"
    SERVING = "ready"
    DRAINING = "not ready: the broker is stopping"


class Health:
    """Event-loop thread only."""

    def __init__(self) -> None:
        self.stage = Stage.RECOVERING

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.SERVING
