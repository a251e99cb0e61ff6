"""ACLs: the rules, and that the index decides as a naive reading of the list does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError
from sparklog.security.acls import (
    ALLOWED_BY,
    CLUSTER,
    OPERATIONS,
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    canonical_host,
    check_acl,
)
from sparklog.security.authorizer import AclAuthorizer, Peer
from sparklog.security.principals import ANY_USER, Principal, user
from tests.support.cases import for_each

ALICE, BOB = user("alice"), user("bob")
HOST = "10.0.0.1"
TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
O = Operation  # noqa: E741


def acl(name: str = "t", operation: Operation = O.READ, permission: Permission = ALLOW, **more: Any) -> Acl:
    given_ = {"resource_type": TOPIC, "pattern_type": LITERAL, "principal": ALICE, "host": "*"} | more
    return Acl(name=name, operation=operation, permission=permission, **given_)


def may(
    acls: list[Acl], operation: Operation = O.READ, name: str = "t", who: Principal = ALICE, host: str = HOST
) -> bool:
    return AclAuthorizer(acls).allowed(Peer(who, host), operation, Resource(TOPIC, name))


def test_without_an_acl_every_operation_is_denied() -> None:
    authorizer = AclAuthorizer()
    for resource_type in ResourceType:
        for operation in OPERATIONS[resource_type]:
            assert not authorizer.allowed(Peer(ALICE, HOST), operation, Resource(resource_type, "x"))


def test_super_users_may_do_everything_even_denied_operations() -> None:
    authorizer = AclAuthorizer([acl(permission=DENY, operation=O.ALL)], super_users=[ALICE])
    assert authorizer.allowed(Peer(ALICE, HOST), O.READ, Resource(TOPIC, "t"))
    assert authorizer.allowed(Peer(ALICE, HOST), O.CLUSTER_ACTION, CLUSTER)
    assert not authorizer.allowed(Peer(BOB, HOST), O.READ, Resource(TOPIC, "t"))


def test_patterns() -> None:
    assert may([acl("t")])
    assert not may([acl("t")], name="tt")
    assert may([acl("t", pattern_type=PREFIXED)], name="tt")
    assert not may([acl("tt", pattern_type=PREFIXED)], name="t")
    assert may([acl("*")], name="anything")
    assert not may([acl("t", resource_type=ResourceType.GROUP)])


def test_an_acl_matches_resources_of_its_type_only() -> None:
    for pattern_type in PatternType:
        for resource_type in ResourceType:
            entry = acl("t", pattern_type=pattern_type, resource_type=TOPIC)
            assert entry.matches(Resource(resource_type, "t")) == (resource_type is TOPIC)


def test_principals_and_hosts() -> None:
    assert not may([acl()], who=BOB)
    assert may([acl(principal=ANY_USER)], who=BOB)
    assert may([acl(host=HOST)])
    assert not may([acl(host="10.0.0.2")])
    assert may([acl(host="::ffff:10.0.0.1")])  # the same address, as a socket that takes both families shows it


def test_a_denial_wins_wherever_it_stands() -> None:
    for denial in (
        acl(permission=DENY),
        acl("*", permission=DENY),
        acl(permission=DENY, principal=ANY_USER),
        acl(permission=DENY, operation=O.ALL),
        acl(permission=DENY, host=HOST),
        acl("t", permission=DENY, pattern_type=PREFIXED),
    ):
        assert not may([acl(), acl("*", O.ALL), denial])
    assert may([acl(), acl(permission=DENY, host="10.0.0.2")])


def test_operations_implied_by_an_operation() -> None:
    for operation in (O.READ, O.WRITE, O.DELETE, O.ALTER):
        assert may([acl(operation=operation)], O.DESCRIBE)
        assert not may([acl(operation=O.DESCRIBE)], operation)
    for operation in (O.CREATE, O.ALTER_CONFIGS, O.DESCRIBE_CONFIGS):
        assert not may([acl(operation=operation)], O.DESCRIBE)
    assert may([acl(operation=O.ALTER_CONFIGS)], O.DESCRIBE_CONFIGS)
    assert not may([acl(operation=O.ALTER)], O.DESCRIBE_CONFIGS)
    assert all(may([acl(operation=O.ALL)], operation) for operation in OPERATIONS[TOPIC])
    # who must not read may still describe: denials imply nothing
    assert may([acl(operation=O.WRITE), acl(operation=O.READ, permission=DENY)], O.DESCRIBE)


def test_everyone_without_an_acl() -> None:
    authorizer = AclAuthorizer([acl("t", principal=BOB)], allow_everyone_if_no_acl_found=True)
    peer = Peer(ALICE, HOST)
    assert authorizer.allowed(peer, O.DELETE, Resource(TOPIC, "free"))
    assert not authorizer.allowed(peer, O.READ, Resource(TOPIC, "t"))  # somebody has an ACL on it: it is protected


@for_each(
    "wrong",
    [
        acl(""),
        acl("*", pattern_type=PREFIXED),
        acl(host="localhost"),
        acl(host=""),
        acl(operation=O.CLUSTER_ACTION),
        acl("c", resource_type=ResourceType.CLUSTER, operation=O.CREATE),
        acl("kafka-", resource_type=ResourceType.CLUSTER, operation=O.CREATE, pattern_type=PREFIXED),
    ],
)
def test_acls_that_could_never_match_are_refused(wrong: Acl) -> None:
    with pytest.raises(InvalidConfigError):
        check_acl(wrong)
    authorizer = AclAuthorizer()
    with pytest.raises(InvalidConfigError):
        authorizer.add([acl(), wrong])
    assert authorizer.acls == frozenset()


def test_a_change_is_seen_at_once_and_counted() -> None:
    authorizer, peer, resource = AclAuthorizer(), Peer(ALICE, HOST), Resource(TOPIC, "t")
    assert not authorizer.allowed(peer, O.READ, resource)
    assert (authorizer.add([acl(), acl()]), authorizer.version) == (1, 1)
    assert authorizer.allowed(peer, O.READ, resource)
    assert (authorizer.add([acl()]), authorizer.version) == (0, 1)
    assert (authorizer.remove([acl(), acl("other")]), authorizer.version) == (1, 2)
    assert not authorizer.allowed(peer, O.READ, resource)


def test_decisions_are_remembered_within_a_limit() -> None:
    authorizer = AclAuthorizer([acl("*")], decisions_max=3)
    for n in range(10):
        assert authorizer.allowed(Peer(ALICE, HOST), O.READ, Resource(TOPIC, f"t{n}"))
        assert len(authorizer._decisions) <= 3


def lines_of(call: Callable[[], object]) -> int:
    """Return the number of Python lines that a call runs: its work, without a clock."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_work_of_a_decision_does_not_depend_on_the_number_of_acls() -> None:
    def work(size: int) -> int:
        acls = [acl(f"team-{n}-", pattern_type=PREFIXED, principal=user(f"u{n}")) for n in range(10_000, 10_000 + size)]
        acls += [acl("shared", principal=user(f"u{n}")) for n in range(size)]
        authorizer = AclAuthorizer(acls)
        peer = Peer(user("u10001"), HOST)
        return lines_of(lambda: authorizer.allowed(peer, O.READ, Resource(TOPIC, "team-10001-clicks"))) + lines_of(
            lambda: authorizer.allowed(peer, O.READ, Resource(TOPIC, "shared"))
        )

    assert work(20_000) <= work(20) + 20


NAMES = st.text("ab*", min_size=1, max_size=4)
HOSTS = st.sampled_from(["*", HOST, "10.0.0.2"])
PRINCIPALS = st.sampled_from([ALICE, BOB, ANY_USER])
TOPIC_OPERATIONS = sorted(OPERATIONS[TOPIC])
ACLS = st.builds(
    Acl,
    resource_type=st.just(TOPIC),
    pattern_type=st.sampled_from(PatternType),
    name=NAMES,
    principal=PRINCIPALS,
    host=HOSTS,
    operation=st.sampled_from([O.ALL, *TOPIC_OPERATIONS]),
    permission=st.sampled_from(Permission),
).filter(lambda a: a.pattern_type is LITERAL or a.name != "*")


def naive(acls: set[Acl], peer: Peer, operation: Operation, name: str, without_acl: bool) -> bool:
    matching = [a for a in acls if a.matches(Resource(TOPIC, name))]
    if not matching:
        return without_acl
    mine = [a for a in matching if a.principal in (peer.principal, ANY_USER) and a.host in ("*", peer.host)]
    if any(a.permission is DENY and a.operation in (operation, O.ALL) for a in mine):
        return False
    return any(a.permission is ALLOW and a.operation in ALLOWED_BY[operation] for a in mine)


@given(
    st.lists(st.tuples(st.booleans(), ACLS), max_size=25),
    st.lists(st.tuples(PRINCIPALS, HOSTS, st.sampled_from(TOPIC_OPERATIONS), NAMES), min_size=1, max_size=10),
    st.booleans(),
)
def test_decides_as_the_naive_model(
    changes: list[tuple[bool, Acl]], questions: list[tuple[Principal, str, Operation, str]], without_acl: bool
) -> None:
    authorizer, model = AclAuthorizer(allow_everyone_if_no_acl_found=without_acl), set[Acl]()
    for adds, entry in changes:
        if adds:
            authorizer.add([entry])
            model.add(entry)
        else:
            authorizer.remove([entry])
            model.discard(entry)
        for principal, host, operation, name in questions:
            peer = Peer(principal, host)
            expected = naive(model, peer, operation, name, without_acl)
            assert authorizer.allowed(peer, operation, Resource(TOPIC, name)) == expected
    assert authorizer.acls == model


@given(st.lists(ACLS, max_size=8), st.sampled_from([ALICE, BOB]), st.sampled_from(TOPIC_OPERATIONS))
def test_by_type_is_true_exactly_if_such_a_resource_can_exist(
    acls: list[Acl], principal: Principal, operation: Operation
) -> None:
    """Candidates: every name in an ACL, and its successor that no ACL names."""
    peer = Peer(principal, HOST)
    names = {a.name for a in acls} | {a.name + "~" for a in acls if a.pattern_type is PREFIXED} | {"~"}
    expected = any(naive(set(acls), peer, operation, name, False) for name in names)
    assert AclAuthorizer(acls).allowed_by_type(peer, operation, TOPIC) == expected


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([acl("t")], True),
        ([acl("t"), acl("t", permission=DENY)], False),
        ([acl("t"), acl("t", O.ALL, DENY)], False),
        ([acl("t"), acl("t", O.WRITE, DENY)], True),
        ([acl("t"), acl("t", permission=DENY, principal=BOB)], True),
        ([acl("t"), acl("t", permission=DENY, principal=ANY_USER)], False),
        ([acl("t"), acl("t", permission=DENY, host="10.0.0.2")], True),
        ([acl("t"), acl("t", permission=DENY, host=HOST)], False),
        ([acl("t"), acl("u"), acl("t", permission=DENY)], True),
        ([acl("*"), acl("t", permission=DENY)], True),
        ([acl("*"), acl("*", permission=DENY)], False),
        ([acl("t"), acl("*", permission=DENY)], False),
        ([acl("te"), acl("t", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl("te", pattern_type=PREFIXED), acl("t", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl("te", pattern_type=PREFIXED), acl("te", permission=DENY, pattern_type=PREFIXED)], False),
        ([acl("te", pattern_type=PREFIXED), acl("tea", permission=DENY, pattern_type=PREFIXED)], True),
        ([acl("te", pattern_type=PREFIXED), acl("te", permission=DENY)], True),
        ([acl("te", pattern_type=PREFIXED), acl("*", permission=DENY)], False),
    ],
)
def test_by_type_is_false_if_denials_cover_every_allowed_pattern(acls: list[Acl], expected: bool) -> None:
    peer = Peer(ALICE, HOST)
    assert AclAuthorizer(acls).allowed_by_type(peer, O.READ, TOPIC) == expected


def test_by_type_without_acls_only_a_denial_of_all_names_denies() -> None:
    peer = Peer(ALICE, HOST)
    for denials, expected in (([], True), ([acl("t", permission=DENY)], True), ([acl("*", permission=DENY)], False)):
        authorizer = AclAuthorizer(denials, allow_everyone_if_no_acl_found=True)
        assert authorizer.allowed_by_type(peer, O.READ, TOPIC) == expected
        assert AclAuthorizer(denials, [ALICE]).allowed_by_type(peer, O.READ, TOPIC), "a super user"


def test_hosts_have_one_way_of_writing() -> None:
    assert canonical_host("2001:0DB8::0001") == "2001:db8::1"
    assert canonical_host("*") == "*"
