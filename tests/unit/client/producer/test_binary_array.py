"""Lists of bytes become Arrow as `pa.array` makes them, without its import of pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.producer.python_values import _join_values, binary_array
from tests.support.cases import for_each

OBJECTS = st.one_of(st.binary(), st.none(), st.binary().map(bytearray), st.binary().map(lambda data: memoryview(data)))


@pytest.fixture(autouse=True, scope="module")
def _without_pandas() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "pandas", raising=False)
        yield


@given(st.lists(OBJECTS))
def test_equals_arrows_array(values: list[Any]) -> None:
    made = binary_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


@given(st.lists(st.binary()))
def test_bytes_are_joined(values: list[bytes]) -> None:
    assert _join_values(values).to_pylist() == values


@for_each("n", [32, 33, 1 << 16, (1 << 16) + 1])
def test_any_number_of_bytes_is_joined(n: int) -> None:
    values = [b"x" * (i % 7) for i in range(n)]
    assert _join_values(values).equals(pa.array(values, pa.binary()))


@for_each("wrong", [[1], [b"a", 1.5], [b"a", {}], [float("nan")]])
def test_refuses_the_values_that_arrow_refuses(wrong: list[Any]) -> None:
    with pytest.raises((pa.ArrowException, TypeError)):
        binary_array(wrong)


def test_views_of_larger_items_are_no_rows_of_bytes() -> None:
    view = memoryview(bytes(8)).cast("i")
    assert binary_array([view]).to_pylist() == pa.array([view], pa.binary()).to_pylist()


def test_sending_does_not_import_pandas() -> None:
    code = (
        "import sys; from sparklog.client.producer.rows import envelope_batch, to_table;"
        "from sparklog.format.schema import ENVELOPE_SCHEMA; import numpy as np;"
        "envelope_batch([b'a'], [b'k'], None, np.zeros(1, np.int64)); to_table({'value': [b'a']}, ENVELOPE_SCHEMA, 't');"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
