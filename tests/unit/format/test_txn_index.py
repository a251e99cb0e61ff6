"""The aborted-transaction index: what it keeps, and which offsets cannot be true."""

from __future__ import annotations

from sparklog.format.txn_index import AbortedEntry, decode_txn_index, encode_txn_index
from tests.support.cases import for_each

FIRST = AbortedEntry(9, 100, 104, 105)


@for_each(
    "following",
    [
        AbortedEntry(9, 105, 106, 107),
        AbortedEntry(7, 50, 105, 105),
        AbortedEntry(0, 0, 2**62, 105),
    ],
)
def test_entries_are_kept(following: AbortedEntry) -> None:
    entries = [FIRST, following]
    assert decode_txn_index(encode_txn_index(entries)) == entries


@for_each(
    "following",
    [
        AbortedEntry(-1, 105, 106, 107),
        AbortedEntry(9, -1, 106, 107),
        AbortedEntry(9, 106, 106, 107),
        AbortedEntry(9, 105, 106, 108),
        AbortedEntry(9, 100, 104, 105),
        AbortedEntry(9, 105, 106, 104),
    ],
)
def test_impossible_offsets_are_damage(following: AbortedEntry) -> None:
    assert decode_txn_index(encode_txn_index([FIRST, following])) is None


def test_each_changed_bit_and_each_shorter_file_is_damage() -> None:
    data = encode_txn_index([FIRST])
    for at in range(len(data)):
        assert decode_txn_index(data[:at]) is None
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert decode_txn_index(bytes(changed)) is None
