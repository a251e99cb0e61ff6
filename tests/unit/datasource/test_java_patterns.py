"""Java's regular expressions find the matches of java.util.regex of Java 17 (Matcher.find), recorded in
java_patterns.json."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_sparklog.options.java_patterns import java_matcher
from pyspark_sparklog.options.options import Subscription, parse_source_options

from sparklog.errors import InvalidConfigError

RECORDED = json.loads(Path(__file__).with_name("java_patterns.json").read_text(encoding="utf-8"))


def test_java_and_python_agree_about_matches_and_refusals() -> None:
    different = {}
    for pattern, expected in RECORDED["found"].items():
        try:
            matches = java_matcher(pattern)
            found = [name for name in RECORDED["names"] if matches(name)]
        except InvalidConfigError:
            found = None
        if found != expected:
            different[pattern] = (expected, found)
    assert different == {}
    assert len(RECORDED["found"]) > 600


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?x) a", r"the flag \(\?x\): comments are not supported"),
        ("(?q)a", r"the flag \(\?q\): there is no such flag"),
        (r"\X", r"\\X is not supported"),
        (r"\N{DIGIT ONE}", r"\\N is not supported"),
        (r"\b{g}a", r"\\b\{g\} .* is not supported"),
        ("(?P<n>a)", r"unknown group \(\?P"),
        (r"\p{Nope}", r"the property \\p\{Nope\} is not known"),
        (r"\y", r"illegal escape sequence \\y"),
        ("a{", r"illegal repetition at index 1"),
        ("[a", "a character class has no closing"),
        ("[z-a]", "illegal character range z-a"),
        ("(?<1>a)", "'1' is no name for a group"),
        ("(?<a>x)(?<a>y)", "two groups are named 'a'"),
        ("(", "is not a regular expression"),
        ("[" * 1000, "more than 100 classes inside one another"),
        ("a" * 10_001, "at most 10000"),
    ],
)
def test_what_is_not_supported_is_named(pattern: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"(?s)^subscribePattern.*{message}"):
        parse_source_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": pattern}, streaming=True)


@given(st.text(max_size=30), st.text(alphabet="ab.-_19", max_size=10))
def test_any_text_is_a_pattern_or_a_typed_error(pattern: str, name: str) -> None:
    with suppress(InvalidConfigError):
        java_matcher(pattern)(name)


def test_a_pattern_that_never_ends_is_given_up() -> None:
    with pytest.raises(InvalidConfigError, match="quantifiers inside one another"):
        java_matcher("(a|aa|a?a)+(b|a)*(a|aa)+[0-8]{3}$", timeout_s=0.05)("a" * 200 + "-")


def test_a_subscription_knows_its_topics() -> None:
    assert Subscription(topics=("a", "b")).names("b") and not Subscription(topics=("a",)).names("b")
    assert Subscription(assign={"a": (0,)}).names("a") and not Subscription(assign={"a": (0,)}).names("b")
    pattern = Subscription(pattern="o")
    assert pattern.names("orders") and not pattern.names("trips") and not pattern.names("__consumer_offsets")
