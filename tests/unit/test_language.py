"""Docstrings and pages name things by nouns: limits for every file, and for all of them together."""

from __future__ import annotations

import functools

from tests.unit.language_counter import Count, count_file, count_text, docstrings, files

PER_100_WORDS_MAX = 0.4
PER_100_WORDS_MAX_OF_ALL = 0.25


@functools.cache
def counts() -> dict[str, Count]:
    return {name: count_file(path) for name, path in files().items()}


def keeps_the_limits(count: Count) -> bool:
    # one relative in a short text is no habit
    return not count.openings and (count.relatives <= 1 or count.per_100_words <= PER_100_WORDS_MAX)


def test_every_file_keeps_the_limits() -> None:
    offending = {name: count for name, count in counts().items() if not keeps_the_limits(count)}
    assert not offending, "name things by nouns, and begin docstrings with a verb or a noun"


def test_all_files_together_keep_the_limit() -> None:
    words, relatives, openings = (sum(numbers) for numbers in zip(*counts().values(), strict=True))
    assert Count(words, relatives, openings).per_100_words <= PER_100_WORDS_MAX_OF_ALL


def test_questions_and_code_are_not_counted() -> None:
    assert count_text("What is a topic? The broker keeps what it was sent.") == (11, 1)
    assert count_text("`what` the reader gets ```who``` whoever asks.") == (5, 1)


def test_docstrings_of_attributes_are_counted() -> None:
    source = (
        'class A:\n    """One."""\n    b: int = 0\n    """Two."""\n\n\ndef f():\n    """Three."""\n    "no docstring"\n'
    )
    assert sorted(docstrings(source)) == ["One.", "Three.", "Two."]
