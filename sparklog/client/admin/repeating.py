"""The rule that decides if a change is sent again.

A request without an answer has an unclear outcome, and is sent again. If the first attempt took effect, the repetition
can fail, and some errors of the repetition prove that the change is made. A refusal of the first attempt is an error.
"""

from __future__ import annotations

from enum import Enum

from sparklog.errors import (
    BrokerNotAvailableError,
    BrokerShuttingDownError,
    NotControllerError,
    RequestTimedOutError,
    SparklogError,
)

UNCLEAR = (RequestTimedOutError, BrokerNotAvailableError, BrokerShuttingDownError, NotControllerError)
"""Errors that leave the change's outcome open: a broker stops, or the controller is replaced. A broker also answers
NotControllerError when it does not know the change's outcome."""


class NextStep(Enum):
    """The next step after a failed attempt."""

    AGAIN = "again"
    LOOK = "look"
    """Check if an earlier attempt has made the change."""
    RAISE = "raise"


class RepeatPolicy:
    """The rule for the attempts of one change.

    `made_if`: errors that show, after an attempt with an unknown outcome, that this attempt has made the change.
    `once`: the change must not be made twice, so no attempt follows an attempt with an unknown outcome.
    """

    def __init__(self, made_if: tuple[type[SparklogError], ...] = (), *, once: bool = False) -> None:
        self._made_if = made_if
        self._once = once
        self.is_unclear = False
        """True if an earlier attempt has an unclear outcome."""

    def after(self, error: SparklogError, *, sent: bool) -> NextStep:
        """Return the next step after an error. `sent`: True if the request was sent to a broker; False if no broker
        could be reached, so that the change certainly was not made."""
        if not isinstance(error, UNCLEAR):
            return NextStep.LOOK if self.is_unclear and isinstance(error, self._made_if) else NextStep.RAISE
        if not sent:
            return NextStep.AGAIN
        if self._once:
            return NextStep.RAISE
        self.is_unclear = True
        return NextStep.AGAIN
