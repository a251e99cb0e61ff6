"""The comparison of sparklog and Kafka notices the differences that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kafka_parity import table
from tests.spark.kafka_parity.checks import Checks, Differs, Observation, shown
from tests.spark.kafka_parity.jobs import said, without_names

WHY = "a reason"


def problems(system: str, found: object, kafka: object, differs: Differs | None = None) -> list[str]:
    checks = Checks("a case", system)
    checks("rows", found, kafka, differs)
    return checks.problems


def test_a_difference_without_a_reason_is_a_problem() -> None:
    assert not problems("sparklog", 1, 1)
    assert problems("sparklog", 2, 1)
    assert not problems("sparklog", 2, 1, Differs(2, WHY))
    assert problems("sparklog", 2, 1, Differs(2, " "))


def test_a_difference_that_is_none_any_more_is_a_problem() -> None:
    assert problems("sparklog", 1, 1, Differs(2, WHY))
    assert problems("kafka", 2, 1, Differs(2, WHY))
    assert problems("sparklog", 1, 1, Differs(1, WHY))


def test_the_order_of_keys_is_no_difference() -> None:
    one, other = (Checks("a case", system) for system in ("kafka", "gateway"))
    one("rows", {"a": {"x": 1, "y": 2}, "b": 2}, {})
    other("rows", {"b": 2, "a": {"y": 2, "x": 1}}, {})
    assert one.seen[0].found == other.seen[0].found and one.seen[0].words == other.seen[0].words


def test_a_case_without_a_check_fails() -> None:
    with pytest.raises(AssertionError, match="checks nothing"):
        Checks("a case", "sparklog").finish()
    checks = Checks("a case", "sparklog")
    checks("rows", 1, 2)
    with pytest.raises(AssertionError, match="rows: sparklog gave 1 in the place of 2"):
        checks.finish()


def test_the_table_has_the_differences(tmp_path: Path) -> None:
    seen = [
        Observation("one", "rows", "sparklog", "['a']", "[a]"),
        Observation("one", "rows", "kafka", "['a']", "[a]"),
        Observation("two", "rows", "sparklog", "[]", "[]", WHY),
        Observation("two", "rows", "kafka", "['a|b']", "[a|b]", WHY),
        Observation("three", "rows", "sparklog", "1", "1"),
        Observation("three", "rows", "kafka", "2", "2"),
        Observation("four", "alone", "sparklog", "2", "2"),
    ]
    rendered = table.render(seen)
    assert rendered.splitlines()[2:] == [
        "| two: rows | [a\\|b] | [] | a reason |",
        "| three: rows | 2 | 1 | **not explained** |",
    ]
    assert table.summary(seen) == "3 cases with 3 checks ran on both; 2 checks differ"
    same = table.render([s for s in seen if s.case == "one"])
    assert same == "None: 1 cases with 1 checks ran on both; 0 checks differ."
    page = tmp_path / "page.md"
    page.write_text("no place for it", encoding="utf-8")
    with pytest.raises(ValueError, match="has no section"):
        table.write(rendered, page)
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", encoding="utf-8")
    table.write(rendered, page)
    assert page.read_text(encoding="utf-8") == f"before\n{table.BEGIN}\n{rendered}\n{table.END}\nafter\n"


def test_each_difference_on_the_pages_has_its_reason() -> None:
    for page in (table.PAGE, table.GATEWAY_PAGE):
        assert "**not explained**" not in page.read_text(encoding="utf-8"), page.name


def test_observations_are_kept_for_the_other_system(tmp_path: Path) -> None:
    ours, theirs = Observation("one", "rows", "sparklog", "1", "1"), Observation("one", "rows", "kafka", "2", "2")
    assert table.remember([ours], tmp_path, whole=True) == [ours]
    assert table.remember([theirs], tmp_path, whole=True) == [ours, theirs]
    more = Observation("two", "rows", "kafka", "3", "3")
    assert table.remember([more], tmp_path, whole=False) == [ours, theirs, more]
    assert table.remember([more], tmp_path, whole=True) == [ours, more]


def test_values_in_a_few_words() -> None:
    assert shown([str(n) for n in range(10)]) == "[10: 0, 1, …, 9]"
    assert shown({"a": None, "b": True}) == "a: null, b: yes"
    assert len(shown("x" * 500)) == 160


def test_text_of_an_error() -> None:
    error = ValueError("first line\norg.x.SomeException: the point\n\tat x")
    assert said(error, ["THE POINT"]) == "THE POINT"
    assert said(error, ["other"]) == "org.x.SomeException: the point"
    assert without_names("t-1 and t-10", "t-1", "t-10") == "t and t1"
