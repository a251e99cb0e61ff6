"""Docstrings and pages name things by nouns: limits for every file, and a list of exceptions that only gets shorter."""

from __future__ import annotations

import functools
import sys

from tests.unit.language_counter import ROOT, Count, count_file, count_text, docstrings, files

PER_100_WORDS_MAX = 0.4
EXCEPTIONS = ROOT / "tests" / "unit" / "language_exceptions.txt"
"""Files that are not rewritten yet. `python -m tests.unit.test_language` takes those out that keep the limits now, and
refuses to make the list longer."""


def keeps_the_limits(count: Count) -> bool:
    # one relative in a short text is no habit
    return not count.openings and (count.relatives <= 1 or count.per_100_words <= PER_100_WORDS_MAX)


@functools.cache
def offending() -> set[str]:
    return {name for name, path in files().items() if not keeps_the_limits(count_file(path))}


def listed() -> set[str]:
    return set(EXCEPTIONS.read_text(encoding="utf-8").split())


def test_every_file_keeps_the_limits_or_is_listed() -> None:
    counts = {name: count_file(files()[name]) for name in sorted(offending() - listed())}
    assert not counts, "name things by nouns, and begin docstrings with a verb or a noun"


def test_the_list_of_exceptions_only_gets_shorter() -> None:
    assert not listed() - offending(), "these keep the limits now: take them out of the list"


def test_questions_and_code_are_not_counted() -> None:
    assert count_text("What is a topic? The broker keeps what it was sent.") == (11, 1)
    assert count_text("`what` the reader gets ```who``` whoever asks.") == (5, 1)


def test_docstrings_of_attributes_are_counted() -> None:
    source = (
        'class A:\n    """One."""\n    b: int = 0\n    """Two."""\n\n\ndef f():\n    """Three."""\n    "no docstring"\n'
    )
    assert sorted(docstrings(source)) == ["One.", "Three.", "Two."]


if __name__ == "__main__":
    longer = offending() - listed() if EXCEPTIONS.exists() else set()
    if longer:
        sys.exit("not added to the list: " + ", ".join(sorted(longer)))
    EXCEPTIONS.write_text("".join(f"{name}\n" for name in sorted(offending())), encoding="utf-8")
