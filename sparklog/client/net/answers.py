"""Checks that an answer matches its request: a broker can be faulty, and the peer can be another program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sparklog.errors import InvalidRequestError

T = TypeVar("T")


class NamedPartition(Protocol):
    """The part of a request or an answer about one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def check_named(who: object, asked: Sequence[NamedPartition], answered: Sequence[NamedPartition]) -> None:
    """Check that the answer has each requested partition once, and no other partition. Raises InvalidRequestError."""
    if sorted((a.topic, a.partition) for a in answered) != sorted((a.topic, a.partition) for a in asked):
        raise InvalidRequestError(f"the response of {who} does not cover the {len(asked)} requested partitions")


def single(found: Sequence[T], what: str) -> T:
    """Return the only entry of an answer about one requested item. Raises InvalidRequestError."""
    if len(found) != 1:
        raise InvalidRequestError(f"the broker's response has {len(found)} entries for one requested {what}")
    return found[0]
