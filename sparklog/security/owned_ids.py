"""Producer ids that prove their owner.

No broker stores the owner of a producer id without transactions, and batches contain ids, not principals. So a leader
that takes over, or restarts, would not know the owner. Therefore the id itself contains a proof, which any broker can
check with the cluster's secret:

    bit 63         0
    bit 62         1: an owned id; other ids are below PRODUCER_ID_END
    bits 24 to 61  the number that the metadata store has issued, modulo 2^38
    bits 0 to 23   tag: the first three bytes of BLAKE2b(number (i64, big-endian) + "kind:name"), keyed with the secret

A principal cannot choose its tag. For one number in 16 million the tags of two principals are equal, so that each of
the two could write with the other's id. A principal that tries out tags finds only ids of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from sparklog.security.principals import Principal
from sparklog.types import PRODUCER_ID_END

SECRET_BYTES = 32
SECRET_NAME = "producer-ids"
"""Key of the security record with the secret (`records`, kind SECRETS)."""

_TAG_BYTES = 3
_TAG_BITS = 8 * _TAG_BYTES
_NUMBER_MASK = (PRODUCER_ID_END - 1) >> _TAG_BITS
_NUMBER = struct.Struct(">q")


def owned_id(secret: bytes, number: int, principal: Principal) -> int:
    """Return the owned id of the principal for an issued number."""
    number &= _NUMBER_MASK
    return PRODUCER_ID_END | number << _TAG_BITS | int.from_bytes(_tag(secret, number, principal))


def is_owned(producer_id: int) -> bool:
    """Return True if the id contains a proof of its owner."""
    return producer_id >= PRODUCER_ID_END


def number_of(producer_id: int) -> int:
    """Return the issued number in an id, owned or not. A larger number was issued later."""
    return (producer_id >> _TAG_BITS) & _NUMBER_MASK if is_owned(producer_id) else producer_id


def belongs_to(secret: bytes, producer_id: int, principal: Principal) -> bool:
    """Return True if the owned id `producer_id` belongs to the principal."""
    tag = (producer_id & (1 << _TAG_BITS) - 1).to_bytes(_TAG_BYTES)
    return hmac.compare_digest(tag, _tag(secret, number_of(producer_id), principal))


def _tag(secret: bytes, number: int, principal: Principal) -> bytes:
    text = _NUMBER.pack(number) + str(principal).encode()
    return hashlib.blake2b(text, key=secret, digest_size=_TAG_BYTES).digest()
