"""Fields that an older version of a message leaves out, and fields that must not be left out."""

from __future__ import annotations

import copy
from typing import Annotated

import msgspec
import pytest

from sparklog.errors import UnsupportedVersionError
from sparklog.protocol import messages as m
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message, Since
from sparklog.protocol.codec import encode
from sparklog.protocol.versions import field_names, forget_newer, newest_field_version
from tests.support.cases import for_each


class Inner(Message):
    name: str
    colour: Annotated[str, Since(2, ignorable=True)] = ""


class Outer(Message):
    inner: Inner | None = None
    inners: list[Inner] = msgspec.field(default_factory=list)
    named: dict[str, Inner] = msgspec.field(default_factory=dict)
    must: Annotated[int, Since(1)] = -1
    may: Annotated[int, Since(2, ignorable=True)] = 0


FULL = Outer(Inner("a", "red"), [Inner("b", "blue")], {"c": Inner("c", "green")}, 7, 8)


def plain(message: Message, version: int | None) -> object:
    return msgspec.msgpack.decode(encode(message, version))


def test_a_version_has_the_fields_that_are_not_newer() -> None:
    assert plain(FULL, 1) == [["a"], [["b"]], {"c": ["c"]}, 7]
    assert plain(FULL, 2) == plain(FULL, None) == [["a", "red"], [["b", "blue"]], {"c": ["c", "green"]}, 7, 8]
    assert field_names(Outer, 0) == ("inner", "inners", "named")
    assert field_names(Outer, None) == ("inner", "inners", "named", "must", "may")
    assert [newest_field_version(t) for t in (Inner, Outer, m.DeleteRecordsRequest)] == [2, 2, 0]


def test_fields_that_must_not_be_ignored_are_refused() -> None:
    with pytest.raises(
        UnsupportedVersionError,
        match=r"version 0 of Outer, .* has no field 'must': upgrade the other side to version 1",
    ):
        encode(FULL, 0)
    assert plain(Outer(Inner("a", "red"), may=3), 0) == [["a"], [], {}], (
        "defaults, and what may be ignored, are left out"
    )


def test_values_in_place_of_newer_fields_are_dropped() -> None:
    found = copy.deepcopy(FULL)
    forget_newer(found, 1)
    assert found == Outer(Inner("a"), [Inner("b")], {"c": Inner("c")}, 7)


@for_each("api", Api)
def test_newer_fields_stand_last_and_have_defaults(api: Api) -> None:
    """So that each version begins with the fields of the one before."""
    for version in range(APIS[api].version_max + 1):
        for message in (APIS[api].request, APIS[api].response):
            names = field_names(message, version)
            assert message.__struct_fields__[: len(names)] == names
            required = len(message.__struct_fields__) - len(message.__struct_defaults__)
            assert len(names) >= required
