"""Identities of transactional producers: the client's, and the broker's.

The broker raises a producer's epoch at the end of each transaction, so that late requests do not belong to the next
one (KIP-890). Clients that end transactions with version 5 learn the new epoch. Older ones keep theirs and go on
counting sequence numbers; for them the gateway remembers the broker's identity, and the number that each partition's
sequences began with.

The memory is this process's: a producer that keeps its epoch, and writes through another gateway or after a restart,
is fenced.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct, field

from sparklog.gateway.records.batch_v2 import BatchV2
from sparklog.types import ProducerIdAndEpoch

IDS_MAX = 100_000
SEQUENCE_MASK = 2**31 - 1


class Producer(Struct):
    """One transactional id."""

    client: ProducerIdAndEpoch
    """Identity that the client was given."""
    broker: ProducerIdAndEpoch
    """Identity that the broker expects."""
    first_sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    """By partition, the client's sequence number that is the broker's 0."""


class Identities:
    """The transactional producers of one gateway. Event-loop thread only."""

    def __init__(self) -> None:
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def began(self, transactional_id: str, identity: ProducerIdAndEpoch) -> None:
        """A producer was given an identity; sequences begin at 0."""
        self._producers[transactional_id] = Producer(identity, identity)
        self._producers.move_to_end(transactional_id)
        if len(self._producers) > IDS_MAX:
            self._producers.popitem(last=False)

    def ended(self, transactional_id: str, identity: ProducerIdAndEpoch) -> None:
        """The broker has ended a transaction of a client that keeps its epoch, and expects `identity` now."""
        found = self._producers.get(transactional_id)
        if found is not None and found.broker != identity:
            found.broker = identity
            found.first_sequences = {}

    def of_broker(self, transactional_id: str, client: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """The broker's identity for a client's; the same one if the client is not known, or has been replaced."""
        found = self._producers.get(transactional_id)
        return found.broker if found is not None and found.client == client else client

    def batch(self, transactional_id: str, partition: tuple[str, int], head: BatchV2) -> BatchV2:
        """The head of a client's batch with the identity and sequence number that the broker expects."""
        found = self._producers.get(transactional_id)
        if found is None or found.client == found.broker:
            return head
        if (head.producer_id, head.producer_epoch) != found.client:
            return head
        first = found.first_sequences.setdefault(partition, head.base_sequence)
        sequence = (head.base_sequence - first) & SEQUENCE_MASK
        producer_id, epoch = found.broker
        return head._replace(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
