"""When a change is asked for again: the rule alone.

A request whose connection is cut, or which nobody answers, may have taken effect. It is sent again; what it has done
before can make the later one fail, which then says that the change is made. A request that was refused at once, with
nothing unclear before it, has failed.
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
"""A broker stops, or the controller is replaced: the change is made, or is not. (A broker says that it is not the
controller any more also when it does not know what has become of the change.)"""


class Next(Enum):
    """What follows from a failed attempt."""

    AGAIN = "again"
    LOOK = "look"
    """Whether things are as they were to be: then the change is made."""
    RAISE = "raise"


class Repeating:
    """The attempts of one change. `made_if`: errors that an attempt may fail with because an earlier one has done
    it. `once`: it must not be made twice, so that an unclear attempt is the last one."""

    def __init__(self, made_if: tuple[type[SparklogError], ...] = (), *, once: bool = False) -> None:
        self._made_if = made_if
        self._once = once
        self.is_unclear = False
        """Whether an attempt may have taken effect."""

    def after(self, error: SparklogError, *, sent: bool) -> Next:
        """`sent`: the request was sent to a broker; else none could be reached, and nothing has become unclear."""
        if not isinstance(error, UNCLEAR):
            return Next.LOOK if self.is_unclear and isinstance(error, self._made_if) else Next.RAISE
        if not sent:
            return Next.AGAIN
        if self._once:
            return Next.RAISE
        self.is_unclear = True
        return Next.AGAIN
