"""The denial matrix: every API × every resource that it needs, against a real pipeline.

`REQUESTS_ABOUT` has a request for every API, about the resources of a `Names`; a new API without an entry fails the
tests. The expectations come from the table that the documentation comes from (`sparklog.protocol.permissions`).

A denied request changes nothing, tells nothing, and looks the same whether the resources exist or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.permission_rules import Denial, Rule
from sparklog.security.acls import Operation, Permission, Resource, ResourceType
from tests.unit.broker.security.access_world import ADMIN, ALICE, MALLORY, Answer, World, item_codes
from tests.unit.broker.security.requests_about import MORE_REQUESTS, NOT_THERE, REQUESTS_ABOUT, THERE, Names, parts

CODES = {"topic": 103, "group": 104, "transactional-id": 105, "cluster": 106, "user": 106}
OPEN_TO_ALL = {
    Api.HANDSHAKE,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    Api.LIST_GROUPS,
    Api.LIST_TRANSACTIONS,
    Api.ALLOWED_OPERATIONS,
}
"""APIs that need no permission. Those without names in the request have filtered answers; the answer of
ALLOWED_OPERATIONS does not depend on the existence of its resources."""
CASES = [*REQUESTS_ABOUT.items(), *MORE_REQUESTS]
IDS = [f"{api.name}{'' if i < len(REQUESTS_ABOUT) else ' again'}" for i, (api, _) in enumerate(CASES)]


class Stage(NamedTuple):
    runner: asyncio.Runner
    world: World


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("matrix")

    async def build() -> World:
        world = await World.begin(directory)
        await world.furnish()
        return world

    with asyncio.Runner() as runner:
        world = runner.run(build())
        yield Stage(runner, world)
        runner.run(world.close())


def needs_of(rule: Rule, request: Message) -> list[tuple[Operation, Resource]]:
    """Return the permissions that an ACL must allow; internal topics are the cluster's."""
    return [
        (Operation.CLUSTER_ACTION, Resource(ResourceType.CLUSTER, "kafka-cluster"))
        if rule.resource_type is ResourceType.TOPIC and name.startswith("__")
        else (rule.operation, Resource(rule.resource_type, name))
        for name in dict.fromkeys(rule.names(request))
    ]


def is_denied(api: Api, request: Message, rule: Rule, answer: Answer) -> bool:
    code = CODES[rule.resource_type]
    if rule.denial is Denial.REQUEST:
        return answer.error_code == code
    codes = item_codes(answer.message)
    return answer.error_code == 0 and len(codes) == len(rule.names(request)) and set(codes) == {code}


def rules_of(api: Api, request: Message) -> list[Rule]:
    return [rule for rule in APIS[api].permissions if rule.names(request)]


def test_every_api_is_in_the_matrix() -> None:
    assert set(REQUESTS_ABOUT) == set(Api)
    for api in Api:
        request, _ = parts(REQUESTS_ABOUT[api](THERE))
        assert bool(rules_of(api, request)) == (api not in OPEN_TO_ALL)


@pytest.mark.parametrize(("api", "about"), CASES, ids=IDS)
def test_a_user_without_rights_makes_no_change_and_learns_no_name(
    stage: Stage, api: Api, about: Callable[[Names], Any]
) -> None:
    async def scenario() -> None:
        world = stage.world
        before = await world.state()
        there = await world.ask(MALLORY, api, *parts(about(THERE)))
        not_there = await world.ask(MALLORY, api, *parts(about(NOT_THERE)))
        assert await world.state() == before, "a denied request has changed something"
        rules = rules_of(api, parts(about(THERE))[0])
        if rules:
            assert is_denied(api, parts(about(THERE))[0], rules[0], there), there
        for existing, other in zip(THERE, NOT_THERE, strict=True):
            there = there._replace(data=there.data.replace(existing.encode(), other.encode()))
        assert (there.error_code, there.data) == (not_there.error_code, not_there.data), "existence shows"
        if api in OPEN_TO_ALL:
            assert not any(name.encode() in not_there.data for name in (*THERE, "idle", "public"))

    stage.runner.run(scenario())


def single_needs() -> list[Any]:
    found = []
    for (api, about), name in zip(CASES, IDS, strict=True):
        request, _ = parts(about(THERE))
        for rule in rules_of(api, request):
            found += [pytest.param(api, about, rule, id=f"{name}-{rule.operation}-{rule.resource_type}")]
    return found


@pytest.mark.parametrize(("api", "about", "rule"), single_needs())
def test_every_single_need_counts(stage: Stage, api: Api, about: Callable[[Names], Any], rule: Rule) -> None:
    """With all but one need, and with a denial on top of all, nothing is done; with all, it is not denied."""

    async def scenario() -> None:
        world = stage.world
        request, payload = parts(about(NOT_THERE))
        needs = {need for r in rules_of(api, request) for need in needs_of(r, request)}
        missing = set(needs_of(rule, request))
        try:
            await world.grant(MALLORY, needs - missing)
            before = await world.state()
            answer = await world.ask(MALLORY, api, request, payload)
            assert is_denied(api, request, rule, answer), answer
            assert await world.state() == before, "a denied request has changed something"
            await world.grant(MALLORY, missing)
            await world.grant(MALLORY, missing, permission=Permission.DENY)
            assert is_denied(api, request, rule, await world.ask(MALLORY, api, request, payload))
            assert is_denied(api, request, rules_of(api, request)[0], await world.ask(ALICE, api, request, payload))
        finally:
            await world.revoke_all()

    stage.runner.run(scenario())


@pytest.mark.parametrize(("api", "about"), CASES, ids=IDS)
def test_a_user_with_all_rights_is_not_denied(tmp_path: Path, api: Api, about: Callable[[Names], Any]) -> None:
    """On a broker of its own: it is done."""

    async def scenario() -> None:
        world = await World.begin(tmp_path)
        try:
            request, payload = parts(about(NOT_THERE))
            await world.grant(MALLORY, [need for r in rules_of(api, request) for need in needs_of(r, request)])
            answer = await world.ask(MALLORY, api, request, payload)
            assert answer.error_code not in CODES.values(), answer
            if api is not Api.METADATA:  # to Describe is not to Create
                assert not set(item_codes(answer.message)) & set(CODES.values()), answer
            by_super_user = await world.ask(ADMIN, api, request, payload)
            assert by_super_user.error_code not in CODES.values()
            assert not set(item_codes(by_super_user.message)) & set(CODES.values()), by_super_user
        finally:
            await world.close()

    asyncio.run(scenario())
