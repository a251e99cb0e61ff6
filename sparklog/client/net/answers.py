"""Checks that an answer matches its request: a broker can be faulty, and the peer can be another program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sparklog.errors import InvalidRequestError
from sparklog.types import ProducerIdAndEpoch

T = TypeVar("T")


class NamedPartition(Protocol):
    """The part of a request or an answer about one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def check_named(peer: object, requested: Sequence[NamedPartition], answered: Sequence[NamedPartition]) -> None:
    """Check that the answer has each requested partition once, and no other partition. Raises InvalidRequestError."""
    if sorted((a.topic, a.partition) for a in answered) != sorted((a.topic, a.partition) for a in requested):
        raise InvalidRequestError(f"the response of {peer} does not cover the {len(requested)} requested partitions")


class Identity(Protocol):
    """The part of an answer that names a producer."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


def identity_of(answer: Identity) -> ProducerIdAndEpoch:
    """Return the identity that a broker has given to a producer. Raises InvalidRequestError unless a batch's header can
    hold it: an id of 64 bits, an epoch of 16 bits."""
    if not (0 <= answer.producer_id < 2**63 and 0 <= answer.producer_epoch < 2**15):
        raise InvalidRequestError(
            f"the broker's response has producer id {answer.producer_id} with epoch {answer.producer_epoch}, which no "
            "producer can have"
        )
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def single(entries: Sequence[T], noun: str) -> T:
    """Return the only entry of an answer about one requested item. Raises InvalidRequestError."""
    if len(entries) != 1:
        raise InvalidRequestError(f"the broker's response has {len(entries)} entries for one requested {noun}")
    return entries[0]
