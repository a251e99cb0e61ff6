"""Shares of descriptors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.descriptors import REFUSALS_MAX, Descriptors, share_out


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, Descriptors(1024, 10_000, 100)),
        (1_048_576, Descriptors(1024, 10_000, 100)),
        (1024, Descriptors(512, 346, 38)),
        (256, Descriptors(128, 87, 9)),
    ],
)
def test_of_usual_limits(limit: int | None, expected: Descriptors) -> None:
    assert share_out(limit, 1024, 10_000) == expected


@given(st.integers(16, 10**7), st.integers(16, 10**7), st.integers(1, 10**6))
def test_never_more_than_available(limit: int, files: int, connections: int) -> None:
    shares = share_out(limit, files, connections)
    assert 1 <= shares.connections <= connections
    assert shares.files <= files
    assert 0 <= shares.refusals <= REFUSALS_MAX
    assert shares.files + shares.connections + shares.refusals < limit
