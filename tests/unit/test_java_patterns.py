"""Java's regular expressions: java_patterns.json has what java.util.regex of Java 17 found in names (Matcher.find)."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError
from sparklog.java_patterns import compile_java, matches_in_time

RECORDED = json.loads(Path(__file__).with_name("java_patterns.json").read_text(encoding="utf-8"))
NOT_SUPPORTED = {
    *(r"\x", r"\0", r"\h", r"\H", r"\v", r"\R", r"\G", r"\c"),
    *(r"\p{InGreek}", r"\p{script=Latin}", r"\p{javaLowerCase}", "(?d) at index 0", "(?u) at index 0"),
    *(f"{operator} in a character class" for operator in ("[:", "--", "~~", "||")),
    "&& at the edge of a character class",
}
"""Constructs of Java that are refused by name."""


def test_patterns_match_as_in_java_or_are_refused_by_name() -> None:
    different = {}
    refused = set()
    for pattern, expected in RECORDED["found"].items():
        try:
            compiled = compile_java(pattern, "s")
            found = [name for name in RECORDED["names"] if compiled.search(name)]
        except InvalidConfigError as e:
            found = None
            named = re.search(r"is not valid: (.*) is not supported", str(e))
            if named is not None and expected is not None:
                refused.add(named[1])
                continue
        if found != expected:
            different[pattern] = (expected, found)
    assert different == {}
    assert refused == NOT_SUPPORTED
    assert len(RECORDED["found"]) > 600


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?x) a", r"\(\?x\) at index 0 is not supported"),
        (r"\X", r"\\X is not supported"),
        (r"\N{DIGIT ONE}", r"\\N is not supported"),
        (r"\b{g}a", "illegal repetition at index 2"),
        (r"(a)\11", r"\\11 is not supported"),
        ("(?P<n>a)", r"\(\?P at index 0 is not supported"),
        (r"\p{Nope}", r"\\p\{Nope\} is not supported"),
        (r"[\b]", r"\\b is not supported"),
        ("a\\", r"\\ is not supported"),
        ("a{", r"illegal repetition at index 1; a literal brace is \\\{"),
        ("[a", "a character class has no closing"),
        ("[z-a]", "bad character range"),
        ("(?<a>x)(?<a>y)", "two groups are named 'a'"),
        ("(", "missing \\)"),
        ("[" * 1000, "more than 100 character classes inside one another"),
        ("a" * 10_001, "at most 10000"),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_setting(pattern: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"(?s)^subscribePattern.*{message}"):
        compile_java(pattern, "subscribePattern")


def test_classes_of_posix_are_those_of_ascii() -> None:
    for name, characters in {"Punct": "!$+<~", "Alpha": "aZ", "Print": " ~", "Cntrl": "\x7f"}.items():
        for char in characters:
            assert compile_java(rf"\p{{{name}}}", "s").fullmatch(char)
            assert not compile_java(rf"[\P{{{name}}}]", "s").fullmatch(char)
        assert not compile_java(rf"\p{{{name}}}", "s").fullmatch("\u00e9")
    assert not compile_java("(?i)k", "s").fullmatch("\u212a")


@given(st.text(max_size=30), st.text(alphabet="ab.-_19", max_size=10))
def test_any_text_is_a_pattern_or_a_typed_error(pattern: str, name: str) -> None:
    with suppress(InvalidConfigError):
        matches_in_time(compile_java(pattern, "s").search, name, "s")


def test_a_pattern_that_never_ends_is_stopped() -> None:
    endless = compile_java("(a|aa|a?a)+(b|a)*(a|aa)+[0-8]{3}$", "s")
    with pytest.raises(InvalidConfigError, match="quantifiers inside one another"):
        matches_in_time(endless.search, "a" * 200 + "-", "s", timeout_s=0.05)
