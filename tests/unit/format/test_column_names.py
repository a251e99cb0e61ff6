"""Lists of column names as one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError
from sparklog.format.column_names import column_list, column_names


@given(st.lists(st.text(min_size=1) | st.text(alphabet=" ,`a\n", min_size=1)))
def test_any_names_can_be_written(names: list[str]) -> None:
    assert column_names(column_list(names)) == names


@given(st.text(alphabet=" ,`ab"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = column_names(text)
    except InvalidConfigError:
        return
    assert all(names)
    assert column_names(column_list(names)) == names


def test_names_as_they_are_written() -> None:
    for text, names in {
        "": [],
        " , ,": [],
        "a": ["a"],
        " a , b c,": ["a", "b c"],
        "`a,b`, ` c`,d`e": ["a,b", " c", "d`e"],
        "`a``b`": ["a`b"],
    }.items():
        assert column_names(text) == names
    for text in ("`a", "`a`b", "``", "a, `b``"):
        with pytest.raises(InvalidConfigError, match=r"--columns = .*backquote"):
            column_names(text, "--columns")
