"""One integer, one case: an honest batch, its mutations, and the resulting hostile batch.

A case has one lie, some have two. `shrunk` tells which of them is needed for what a target finds, so that a failure
names one mutation where one is enough.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.producer.rows import envelope_batch
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN, decode_header, stamp_batch
from sparklog.format.offset_column import with_offset_column
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.small_batch import SmallRows, encode_small_batch
from tests.campaigns.fuzz.message import BufferRole, Message, buffer_roles
from tests.campaigns.fuzz.mutations import MUTATIONS
from tests.campaigns.fuzz.whole_batches import HOSTILE_OFFSET, WRONG, encoded
from tests.golden.make_golden import BASE_MS, TYPED_SCHEMA, envelope_rows, typed_rows

ENVELOPE_ID, TYPED_ID = 1, 2
TRIES = 100
SCHEMAS = {ENVELOPE_ID: ENVELOPE_SCHEMA, TYPED_ID: TYPED_SCHEMA}


class Form(NamedTuple):
    """Form of an honest batch. `how`: arrow, small, packed, compacted."""

    schema_id: int
    how: str
    rows: int
    compression: str


FORMS = [
    *(Form(s, "arrow", n, c) for s in SCHEMAS for n in (1, 5, 40) for c in ("none", "lz4", "zstd")),
    *(Form(s, "compacted", 5, c) for s in SCHEMAS for c in ("none", "zstd")),
    *(Form(ENVELOPE_ID, "small", n, "none") for n in (1, 7)),
    Form(ENVELOPE_ID, "packed", 256, "none"),
]


class Case(NamedTuple):
    """A hostile batch with a right checksum. `mutations` are their names, `form` is the honest batch's."""

    seed: int
    form: Form
    mutations: tuple[str, ...]
    data: bytes
    mutation_count: int
    """Number of the seed's lies; `mutations` may be fewer of them."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMAS[self.form.schema_id]

    def stamped(self) -> bytes:
        """As it lies in a file: at HOSTILE_OFFSET, if it has a header to be stamped."""
        data = bytearray(self.data)
        try:
            header = decode_header(data)
        except CorruptBatchError:
            return bytes(data)
        stamp_batch(data, 0, header, base_offset=HOSTILE_OFFSET, leader_epoch=0, append_time_ms=BASE_MS)
        return bytes(data)

    @property
    def name(self) -> str:
        form = f"{self.form.how} batch of {self.form.rows} rows, schema {self.form.schema_id}, {self.form.compression}"
        return f"seed {self.seed}: {' and '.join(self.mutations) or 'nothing changed'} ({form})"


def honest_rows(schema_id: int, first: int, count: int) -> pa.RecordBatch:
    """Rows with different values for every `first`."""
    return (envelope_rows if schema_id == ENVELOPE_ID else typed_rows)(first, count)


@cache
def honest_batch(form: Form) -> bytes:
    """The batch that a case of this form begins with."""
    rows = honest_rows(form.schema_id, 0, form.rows)
    if form.how == "small":
        values = [b"value %d" % i for i in range(form.rows)]
        stamps = [(BASE_MS + i) * 1000 for i in range(form.rows)]
        return bytes(encode_small_batch(SmallRows(values, None, stamps), form.schema_id))
    if form.how == "packed":
        stamps_us = np.full(form.rows, BASE_MS * 1000)
        rows = envelope_batch([b"value %d" % i for i in range(form.rows)], None, None, stamps_us)
        packed = encode_packed_batch(rows, schema_id=form.schema_id)
        assert packed is not None
        return bytes(packed.payload)
    if form.how == "compacted":
        offsets = pa.array([HOSTILE_OFFSET + 2 * i for i in range(form.rows)], pa.int64())
        made = pa.RecordBatch.from_arrays([*rows.columns, offsets], schema=with_offset_column(rows.schema))
        delta = 2 * form.rows
        return encoded(
            made, form.schema_id, form.compression, attributes=ATTRIBUTE_OFFSET_COLUMN, last_offset_delta=delta
        )
    return encoded(rows, form.schema_id, form.compression)


def make_case(seed: int, only: tuple[int, ...] | None = None) -> Case:
    """The case of a seed; `only` some of its lies, by their numbers."""
    rng = Random(seed)
    form = rng.choice(FORMS)
    if rng.random() < 0.2:
        wrong = rng.choice(WRONG)
        rows = honest_rows(form.schema_id, 0, min(form.rows, 40))
        name, data = wrong(rows, form.schema_id, form.compression, rng)
        return Case(seed, form, (name,), data, 1)
    stored = with_offset_column(SCHEMAS[form.schema_id]) if form.how == "compacted" else SCHEMAS[form.schema_id]
    roles = buffer_roles(stored)
    message = Message(honest_batch(form))
    count = 2 if rng.random() < 0.15 else 1
    names: list[str] = []
    for i in range(count):
        source = Random(f"{seed}/{i}")
        if only is not None and i not in only:
            continue
        lie = _apply_lie(message, roles, source, is_first=not names)
        if lie is None:
            break
        names.append(lie)
    return Case(seed, form, tuple(names), message.sealed(), count)


def shrunk(case: Case, fails: Callable[[Case], bool]) -> tuple[Case, tuple[int, ...] | None]:
    """The same case with as few lies as it still fails with, and which they are (None: all)."""
    if case.mutation_count < 2:
        return case, None
    for i in range(case.mutation_count):
        smaller = make_case(case.seed, (i,))
        if fails(smaller):
            return smaller, (i,)
    return case, None


def _apply_lie(message: Message, roles: Sequence[BufferRole], source: Random, *, is_first: bool) -> str | None:
    """Tells a lie that changes the batch; None if one before has left nothing that could be changed."""
    before = message.sealed()
    for _ in range(TRIES):
        try:
            lie = source.choice(MUTATIONS)(message, roles, source)
        except (IndexError, ValueError, OverflowError, struct.error, pa.ArrowException, OSError):
            if is_first:
                raise
            return None
        if lie is not None and message.sealed() != before:  # a value may be written over itself
            return lie
    raise AssertionError(f"none of {TRIES} lies has changed the batch")
