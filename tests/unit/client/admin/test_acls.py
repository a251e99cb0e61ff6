"""ACLs that are deleted in several requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sparklog.client.admin.acl_admin import delete_acls
from sparklog.protocol.acl_messages import AclEntry, DeleteAclsResponse
from sparklog.security.acl_records import AclFilter, acl_from_texts, as_texts
from sparklog.security.acls import Acl

ACLS = [acl_from_texts("topic", "literal", name, "User:a", "*", "Read", "Allow") for name in ("orders", "rides")]


class Answers:
    """Gives each request the next answer."""

    def __init__(self, *answers: DeleteAclsResponse) -> None:
        self.left = list(answers)
        self.call: Any = SimpleNamespace(change=lambda request, response: self.left.pop(0))


def answer(*acls: Acl, more: bool) -> DeleteAclsResponse:
    return DeleteAclsResponse([AclEntry(*as_texts(acl)) for acl in acls], more)


def test_a_deletion_is_repeated_while_more_acls_match() -> None:
    answers = Answers(answer(ACLS[1], more=True), answer(ACLS[0], more=False), answer(more=False))
    assert delete_acls(answers.call, [AclFilter()]) == ACLS
    assert len(answers.left) == 1


def test_a_deletion_ends_with_an_answer_without_acls() -> None:
    answers = Answers(answer(ACLS[0], more=True), answer(more=True), answer(more=True))
    assert delete_acls(answers.call, [AclFilter()]) == ACLS[:1]
    assert len(answers.left) == 1


def test_no_filter_sends_no_request() -> None:
    assert delete_acls(Answers().call, []) == []
