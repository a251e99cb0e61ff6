"""Pages of a broker that behaves, of an older one, and of one that never ends."""

from __future__ import annotations

from operator import attrgetter

import pytest

from sparklog.client.net.paging import PAGES_MAX, after_last, pages
from sparklog.errors import InvalidRequestError
from sparklog.protocol.group_messages import GroupSummary, ListGroupsRequest, ListGroupsResponse


def page(*ids: str, more: bool) -> ListGroupsResponse:
    return ListGroupsResponse([GroupSummary(i, "Empty", "offsets", 0) for i in ids], more)


FIRST = ListGroupsRequest(paged=True)
after_last_id = after_last("groups", attrgetter("group_id"))


def test_each_page_request_names_the_page_before() -> None:
    answers = {"": page("a", "b", more=True), "b": page("c", more=True), "c": page("d", more=False)}
    asked: list[str] = []

    def ask(request: ListGroupsRequest) -> ListGroupsResponse:
        asked.append(request.after)
        return answers[request.after]

    assert [g.group_id for p in pages(ask, FIRST, after_last_id) for g in p.groups] == ["a", "b", "c", "d"]
    assert asked == ["", "b", "c"]


def test_an_older_broker_sends_one() -> None:
    assert [len(p.groups) for p in pages(lambda _: page("a", "b", more=False), FIRST, after_last_id)] == [2]
    assert [len(p.groups) for p in pages(lambda _: page(more=False), FIRST, after_last_id)] == [0]


@pytest.mark.parametrize("answer", [page("a", more=True), page(more=True)], ids=["the same again", "nothing"])
def test_pages_that_do_not_get_on(answer: ListGroupsResponse) -> None:
    with pytest.raises(InvalidRequestError, match="repeats the same position"):
        list(pages(lambda _: answer, FIRST, after_last_id))


def test_pages_without_end() -> None:
    asked = 0

    def ask(_: ListGroupsRequest) -> ListGroupsResponse:
        nonlocal asked
        asked += 1
        return page(str(asked), more=True)

    with pytest.raises(InvalidRequestError, match="announces more"):
        list(pages(ask, FIRST, after_last_id))
    assert asked == PAGES_MAX
