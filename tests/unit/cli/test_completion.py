"""Completion: the offers for settings, and words that bash has split."""

from __future__ import annotations

import pytest

from sparklog.cli import completion
from sparklog.cli.completion import complete_setting, join_bash_words, joined_words, setting_names
from sparklog.settings import Scope, settings_of


def offered(typed: str, scope: Scope = Scope.TOPIC) -> list[str]:
    return [text for text, _ in complete_setting(scope, typed)]


def test_every_setting_is_offered_with_its_meaning() -> None:
    for scope in (Scope.TOPIC, Scope.PRODUCER, Scope.CONSUMER):
        assert offered("", scope) == [f"{name}=" for name in settings_of(scope)]
        assert all(meaning and "\n" not in meaning for _, meaning in complete_setting(scope, ""))


def test_the_only_remaining_name_comes_with_values() -> None:
    assert offered("retention.") == ["retention.ms=", "retention.bytes="]
    assert offered("retention.m") == ["retention.ms=604800000", "retention.ms=-1"]
    assert offered("flush.mo") == ["flush.mode=none", "flush.mode=group"]
    assert offered("remote.storage.e") == ["remote.storage.enable=true", "remote.storage.enable=false"]


def test_values_behind_the_equals_sign() -> None:
    assert offered("flush.mode=") == ["flush.mode=none", "flush.mode=group"]
    assert offered("flush.mode=g") == ["flush.mode=group"]
    assert offered("flush.mode=x") == []
    assert offered("flush.mo=") == []
    assert offered("acks=", Scope.PRODUCER) == ["acks=0", "acks=1", "acks=all"]


def test_every_value_that_is_offered_is_accepted() -> None:
    for scope in (Scope.TOPIC, Scope.PRODUCER, Scope.CONSUMER):
        for name, setting in settings_of(scope).items():
            for text in offered(f"{name}=", scope):
                setting.parse(text.removeprefix(f"{name}="))


def test_names_alone() -> None:
    assert [name for name, _ in setting_names(Scope.TOPIC)("segment.")] == [
        "segment.bytes",
        "segment.ms",
        "segment.jitter.ms",
        "segment.index.bytes",
    ]


@pytest.mark.parametrize(
    ("pieces", "words", "before", "piece"),
    [
        (["sparklog", "topic", ""], ["sparklog", "topic"], "", ""),
        (["sparklog", "topic", "de"], ["sparklog", "topic"], "", "de"),
        (["s", "-c", "flush.mode", "="], ["s", "-c"], "flush.mode=", ""),
        (["s", "-c", "flush.mode", "=", "gr"], ["s", "-c"], "flush.mode=", "gr"),
        (["s", "-c", "flush.mode", "=", "group", ""], ["s", "-c", "flush.mode=group"], "", ""),
        (["s", "--config", "=", "flush.mo"], ["s", "--config"], "", "flush.mo"),
        (["s", "--config", "=", "flush.mode", "=", "gr"], ["s", "--config"], "flush.mode=", "gr"),
        (["s", "-b", "127.0.0.1", ":", "9292", "t"], ["s", "-b", "127.0.0.1:9292"], "", "t"),
        (["s", "-b", "[", "::", "1]", ":", "9292", "t"], ["s", "-b", "[::1]:9292"], "", "t"),
        (["s", "-b", "a", ":", "1,b", ":", "2", ""], ["s", "-b", "a:1,b:2"], "", ""),
        (["s", "--schema", '"a INT, b STRING"', "--con"], ["s", "--schema", '"a INT, b STRING"'], "", "--con"),
    ],
)
def test_bash_words(pieces: list[str], words: list[str], before: str, piece: str) -> None:
    assert joined_words(pieces, len(pieces) - 1) == (words, before, piece)


def test_words_behind_the_cursor_do_not_count() -> None:
    assert joined_words(["sparklog", "topic", "de", "x", "=", "y"], 2) == (["sparklog", "topic"], "", "de")


def test_only_bashs_words_are_touched() -> None:
    for environment in ({}, {"_SPARKLOG_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "sparklog to"}):
        before = dict(environment)
        join_bash_words(environment)
        assert environment == before


def test_words_that_typer_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_typed_before", "")
    pieces = ["sparklog", "consume", "t", "-c", "local.read", "=", "o"]
    environment = {"_SPARKLOG_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(pieces), "COMP_CWORD": "6"}
    join_bash_words(environment)
    assert environment["COMP_WORDS"].split("\n") == ["sparklog", "consume", "t", "-c", "o"]
    assert environment["COMP_CWORD"] == "4"
    assert [text for text, _ in completion.settings(Scope.CONSUMER)("o")] == ["off"]
