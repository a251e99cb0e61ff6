"""Identities of transactional producers that keep their epoch."""

from __future__ import annotations

from sparklog.gateway.records.batch_v2 import BatchV2
from sparklog.gateway.transactions import Identities
from sparklog.types import ProducerIdAndEpoch

PARTITION = ("t", 0)


def head(epoch: int, sequence: int, producer_id: int = 7) -> BatchV2:
    return BatchV2(0, 100, 0, 2, 0, 0x10, 0, 0, 0, producer_id, epoch, sequence, 1)


def test_a_client_that_keeps_its_epoch_goes_on_under_the_brokers() -> None:
    identities = Identities()
    identities.began("id", ProducerIdAndEpoch(7, 0))
    assert identities.batch("id", PARTITION, head(0, 0)) == head(0, 0)
    identities.ended("id", ProducerIdAndEpoch(7, 1))
    assert identities.of_broker("id", ProducerIdAndEpoch(7, 0)) == (7, 1)
    assert identities.batch("id", PARTITION, head(0, 5)) == head(1, 0)
    assert identities.batch("id", PARTITION, head(0, 8)) == head(1, 3)
    assert identities.batch("id", PARTITION, head(0, 5)) == head(1, 0), "a repeated batch has its number again"
    assert identities.batch("id", ("t", 1), head(0, 2)) == head(1, 0), "each partition counts for itself"
    identities.ended("id", ProducerIdAndEpoch(9, 0))  # the epochs of id 7 are used up
    assert identities.batch("id", PARTITION, head(0, 11)) == head(0, 0, 9)


def test_numbers_go_on_at_zero_after_the_largest() -> None:
    identities = Identities()
    identities.began("id", ProducerIdAndEpoch(7, 0))
    identities.ended("id", ProducerIdAndEpoch(7, 1))
    assert identities.batch("id", PARTITION, head(0, 2**31 - 1)) == head(1, 0)
    assert identities.batch("id", PARTITION, head(0, 0)) == head(1, 1)


def test_a_client_that_was_replaced_stays_what_it_is() -> None:
    identities = Identities()
    identities.began("id", ProducerIdAndEpoch(7, 0))
    identities.ended("id", ProducerIdAndEpoch(7, 1))
    identities.began("id", ProducerIdAndEpoch(7, 2))
    assert identities.batch("id", PARTITION, head(0, 5)) == head(0, 5), "the broker refuses its old epoch"
    assert identities.of_broker("id", ProducerIdAndEpoch(7, 0)) == (7, 0)
    assert identities.of_broker("other", ProducerIdAndEpoch(1, 1)) == (1, 1)
