"""Whose a producer id is: nobody writes as a producer that is not his.

A transactional batch belongs to the transactional id that the request names, which the peer has been allowed to write
to. That the producer id belongs to it is what the coordinator is asked before the producer's first batch in a
partition. Later batches are not asked for, so a request that names another transactional id, or none, would slip into a
transaction that is open there: `judge` remembers which pairs the coordinator has confirmed.

A producer id without a transactional id belongs to the principal that got it from this broker; on other brokers, and
after a restart, in each topic to the first that writes with it there. (Who may not write to a topic takes nothing from
those who may.) This is remembered, not stored; the oldest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

from sparklog.errors import (
    CorruptBatchError,
    InvalidProducerIdMappingError,
    SparklogError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader, iterate_batches
from sparklog.security.principals import Principal

REMEMBERED_MAX = 100_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ProducerOwners:
    """Event-loop thread only."""

    def __init__(self) -> None:
        self._issued: OrderedDict[int, Principal] = OrderedDict()
        self._first: OrderedDict[tuple[str, int], Principal] = OrderedDict()
        self._confirmed: OrderedDict[tuple[str, int], None] = OrderedDict()

    def issued(self, producer_id: int, principal: Principal) -> None:
        """The principal has got this id."""
        _remember(self._issued, producer_id, principal)

    def confirmed(self, transactional_id: str, producer_id: int) -> None:
        """The coordinator has said that the id belongs to the transactional id."""
        _remember(self._confirmed, (transactional_id, producer_id), None)

    def judge(
        self, principal: Principal, transactional_id: str | None, topic: str, piece: memoryview
    ) -> SparklogError | BatchHeader | None:
        """Why the batches may not be appended, or a batch of which the coordinator has to be asked first. None: they
        are the principal's, or cannot be read, which the log says better."""
        try:
            headers = [header for _, header in iterate_batches(piece, verify=False)]
        except CorruptBatchError:
            return None
        producers = {header.producer_id for header in headers}
        if len(producers) > 1:
            return InvalidProducerIdMappingError("batches of several producers for one partition")
        if not headers or headers[0].producer_id < 0:
            return None
        if not any(header.attributes & ATTRIBUTE_TRANSACTIONAL for header in headers):
            return self._judge_plain(principal, topic, headers[0].producer_id)
        if transactional_id is None:
            return TransactionalIdAuthorizationFailedError("a transactional batch without a transactional id")
        return None if (transactional_id, headers[0].producer_id) in self._confirmed else headers[0]

    def _judge_plain(self, principal: Principal, topic: str, producer_id: int) -> SparklogError | None:
        owner = self._issued.get(producer_id)
        if owner is None:
            owner = self._first.get((topic, producer_id))
        if owner is None:
            _remember(self._first, (topic, producer_id), principal)
        elif owner != principal:
            return InvalidProducerIdMappingError(
                f"the producer id {producer_id} is somebody else's: get one of your own"
            )
        return None


def _remember(where: OrderedDict[K, V], key: K, value: V) -> None:
    where[key] = value
    where.move_to_end(key)
    if len(where) > REMEMBERED_MAX:
        where.popitem(last=False)
