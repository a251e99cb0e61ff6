"""The targets can fail: a child that dies, hangs, swells or raises is told, and a case is told by its mutation."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header, iterate_batches, stamp_batch
from tests.campaigns.fuzz.cases import FORMS, SCHEMAS, Form, honest_batch, make_case, shrunk
from tests.campaigns.fuzz.child import DIED, HUNG, MEMORY, NOISE, TYPED, UNTYPED, VALUE, Child
from tests.campaigns.fuzz.message import Message, buffer_roles
from tests.campaigns.fuzz.planted import rows_of
from tests.campaigns.fuzz.reference import UnreadableError, read_batch
from tests.campaigns.fuzz.whole_batches import HOSTILE_OFFSET
from tests.support.cases import for_each


def behave(how: str) -> str:
    """Called in the child."""
    if how == "segfault":
        ctypes.string_at(0)
    if how == "hang":
        time.sleep(3600)
    if how == "swell":
        assert np.ones(500 << 20, np.uint8).any()
    if how == "noise":
        print("Traceback (most recent call last)", file=sys.stderr, flush=True)
    if how == "typed":
        raise CorruptBatchError("as told")
    if how == "untyped":
        raise KeyError("as told")
    return how


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("fine", VALUE),
        ("segfault", DIED),
        ("hang", HUNG),
        ("swell", MEMORY),
        ("noise", NOISE),
        ("typed", TYPED),
        ("untyped", UNTYPED),
    ],
)
def test_the_end_of_a_child_is_reported(how: str, kind: str, tmp_path: Path) -> None:
    with Child("tests.campaigns.fuzz.test_harness:behave", tmp_path) as child:
        assert child.call("fine").kind == VALUE
        patience_s, child.patience_s = child.patience_s, 1.0 if how == "hang" else child.patience_s
        assert child.call(how).kind == kind
        child.patience_s = patience_s
        assert child.call("fine") == (VALUE, "fine", "")  # it is there again


def test_a_seed_is_a_case() -> None:
    changed = 0
    for seed in range(100):
        case = make_case(seed)
        assert case == make_case(seed)
        assert case.mutations
        changed += case.data != honest_batch(case.form)
    assert changed > 95  # other indices may happen to be the values


def test_most_cases_have_a_right_checksum() -> None:
    """Otherwise they would not test the checks behind it."""
    right = 0
    for seed in range(300):
        try:
            right += bool(list(iterate_batches(make_case(seed).data, verify=True)))
        except CorruptBatchError as e:
            right += "checksum" not in str(e) and "header" not in str(e)
    assert right > 200


def test_a_case_shrinks_to_the_lie_that_matters() -> None:
    case = next(c for c in map(make_case, range(1000)) if c.mutation_count == 2)
    smaller, which = shrunk(case, lambda c: case.mutations[1] in c.mutations)
    assert which == (1,)
    assert smaller.mutations == case.mutations[1:]


@for_each("form", FORMS, ids=lambda f: f"{f.how}-{f.schema_id}-{f.rows}-{f.compression}")
def test_the_reference_reads_honest_batches(form: Form) -> None:
    data = bytearray(honest_batch(form))
    stamp_batch(data, 0, decode_header(data), base_offset=HOSTILE_OFFSET, leader_epoch=0, append_time_ms=0)
    assert len(rows_of(bytes(data), form.schema_id)) == decode_header(data).record_count == form.rows


def test_the_reference_refuses_most_lies() -> None:
    refused = 0
    for case in map(make_case, range(300)):
        try:
            refused += not read_batch(case.data, case.schema).is_whole
        except UnreadableError:
            refused += 1
    assert refused > 150


def test_the_roles_are_arrows_buffers() -> None:
    for form in FORMS:
        if form.how != "compacted":
            assert len(buffer_roles(SCHEMAS[form.schema_id])) == Message(honest_batch(form)).buffers
