"""Rows of small batches, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from sparklog.format.small_batch import ROWS_MAX, SmallRows

BYTES = st.binary(max_size=40)


@st.composite
def small_rows(draw: st.DrawFn) -> SmallRows:
    n = draw(st.integers(1, ROWS_MAX))
    column = st.lists(BYTES, min_size=n, max_size=n)
    stamps = draw(st.lists(st.integers(-(2**60), 2**60), min_size=n, max_size=n))
    return SmallRows(draw(column), draw(st.none() | column), stamps)
