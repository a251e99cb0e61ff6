"""The proportions of the house: lists of exceptions that only get shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.support.cases import for_each
from tests.support.proportions import (
    Item,
    campaign_files,
    files_of_tests,
    is_vague,
    kept_trees,
    large_classes,
    late_attributes,
    long_files,
    long_functions,
    product_files,
    vague_identifiers,
)

LONG_FILES = {
    "sparklog/client/admin/admin.py": "one public class: its methods are the API, their docstrings the reference",
    "sparklog/client/consumer/consumer.py": "one public class, with its docstrings",
    "sparklog/errors.py": "one table: an exception class per error code",
    "sparklog/kafka/wire/requests.py": "generated: the type of each request",
    "sparklog/kafka/wire/responses.py": "generated: the type of each response",
}
LONG_FUNCTIONS = {
    "sparklog/cli/broker.py::broker": "a list of options",
    "sparklog/cli/consume.py::consume": "a list of options",
    "sparklog/cli/doctor/command.py::doctor": "a list of options",
    "sparklog/cli/group.py::reset_offsets": "a list of options",
    "sparklog/client/admin/admin.py::create_mirror": "two thirds are the documentation of its arguments",
    "sparklog/client/producer/producer.py::send": "two thirds are the documentation of its arguments",
    "sparklog/client/reading/read_table.py::read_table": "two thirds are the documentation of its arguments",
}
LARGE_CLASSES = {
    "sparklog/client/admin/admin.py::Admin": "one public method for each administrative operation",
    "sparklog/client/consumer/consumer.py::Consumer": "the public methods are those of Kafka's consumer",
}
LATE_ATTRIBUTES = {
    "broker_daemon/sparklog_broker/log_format.py::RolledFile.stream": "set by the library's base class",
    "datasource/pyspark_sparklog/__init__.py::DefaultSource.__dict__": "Spark unpickles the object without `__init__`",
}
VAGUE_IDENTIFIERS_MAX = 89
VAGUE_TEST_NAMES_MAX = 0


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    with kept_trees():
        yield


def places(items: Iterable[Item]) -> set[str]:
    return {item.place for item in items}


def test_product_files_are_short() -> None:
    assert places(long_files(product_files())) == set(LONG_FILES)


def test_product_functions_are_short() -> None:
    assert places(item for path in product_files() for item in long_functions(path)) == set(LONG_FUNCTIONS)


def test_product_classes_have_few_methods() -> None:
    assert places(item for path in product_files() for item in large_classes(path)) == set(LARGE_CLASSES)


def test_objects_are_whole_after_their_construction() -> None:
    """No class sets an attribute first outside of `__init__`."""
    assert places(item for path in product_files() for item in late_attributes(path)) == set(LATE_ATTRIBUTES)


def test_identifiers_name_things_by_nouns_and_verbs() -> None:
    counts = sum((vague_identifiers(path) for path in product_files()), Counter[str]())
    assert sum(counts.values()) <= VAGUE_IDENTIFIERS_MAX, counts.most_common(20)


def test_names_of_tests_name_things_by_nouns_and_verbs() -> None:
    counts = sum((vague_identifiers(path) for path in [*files_of_tests(), *campaign_files()]), Counter[str]())
    names = [name for name in counts.elements() if name.startswith("test_")]
    assert len(names) <= VAGUE_TEST_NAMES_MAX, names[:20]


@for_each("name", ["found", "_left_ms", "test_what_is_sent", "KnownBrokers", "was_made"])
def test_vague_words_are_recognized(name: str) -> None:
    assert is_vague(name)


@for_each("name", ["founder", "left_outer", "unknown_topic", "whole", "whatsoever_is"])
def test_other_words_are_not_vague(name: str) -> None:
    assert not is_vague(name)
