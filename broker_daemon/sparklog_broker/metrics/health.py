"""The stage of the broker's life, which `/health/ready` shows."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """A stage. The value is the page's text."""

    RECOVERING = "not ready: the logs are being opened and checked"
    SERVING = "ready"
    DRAINING = "not ready: the broker is stopping"


class Health:
    """The present stage. Event-loop thread only."""

    def __init__(self) -> None:
        self.stage = Stage.RECOVERING

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.SERVING
