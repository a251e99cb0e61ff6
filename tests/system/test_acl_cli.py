"""`sparklog acl` against real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin
from sparklog.client.local_zookeeper import has_java
from sparklog.errors import ClusterAuthorizationFailedError, SecurityDisabledError, TopicAuthorizationFailedError
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import ANONYMOUS, user
from tests.support.cli import Run, run_here
from tests.support.waiting import until_reached

OPEN = {"authorizer": "acl", "super.users": "User:ANONYMOUS"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[sparklog.LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path / "broker-data", settings=OPEN) as local:
        yield local


def test_acls_are_added_listed_and_removed(run: Run, broker: sparklog.LocalBroker) -> None:
    assert "no such ACLs" in run("acl", "list").stderr
    made = run("acl", "add", "--allow-principal", "User:loader", "--producer", "--topic", "trips", "--topic", "fares")
    assert "6 added, 0 existed already" in made.stdout
    run("acl", "add", "--allow-principal", "User:report", "--consumer", "--topic", "trips", "--group", "report")
    prefixed = ("--resource-pattern-type", "prefixed")
    run("acl", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--topic", "tri", *prefixed)
    run("acl", "add", "--allow-principal", "User:ops", "--operation", "alter", "--operation", "Create", "--cluster")
    run("acl", "add", "--allow-principal", "User:q", "--producer", "--topic", "trips", "--transactional-id", "q",
        "--idempotent")  # fmt: skip
    acls = set(Admin(broker.bootstrap_servers).describe_acls())
    assert len(acls) == 6 + 3 + 1 + 2 + 6
    topic, literal, allow = ResourceType.TOPIC, PatternType.LITERAL, Permission.ALLOW
    assert Acl(topic, literal, "trips", user("report"), "*", Operation.READ, allow) in acls
    assert Acl(ResourceType.GROUP, literal, "report", user("report"), "*", Operation.READ, allow) in acls
    assert "IdempotentWrite" in run("acl", "list", "--cluster").stdout
    listed = run("acl", "list", "--topic", "trips", "--resource-pattern-type", "match").stdout
    assert "User:*" in listed
    assert "10.0.0.9" in listed
    assert "fares" not in listed
    assert "User:*" not in run("acl", "list", "--topic", "trips").stdout
    only = run("acl", "list", "--principal", "User:ops", "--operation", "Alter").stdout
    assert "Alter" in only
    assert "Create" not in only
    assert run("acl", "remove", "--topic", "fares", stdin="n\n", code=1)
    assert "fares" in run("acl", "list").stdout
    assert "3 removed" in run("acl", "remove", "--topic", "fares", "--force").stdout
    assert "no such ACLs" in run("acl", "remove", "--topic", "fares", "--yes").stderr
    assert "1 removed" in run(
        "acl", "remove", "--topic", "trips", "--allow-principal", "User:loader", "--operation", "Write", "--yes"
    ).stdout  # fmt: skip
    left = run("acl", "list", "--principal", "User:loader").stdout
    assert "Write" not in left
    assert "Describe" in left


def test_contradictory_arguments_are_refused_with_a_hint(run: Run, broker: sparklog.LocalBroker) -> None:
    somebody = ("--allow-principal", "User:a")
    assert "name a principal" in run("acl", "add", "--topic", "t", code=2).stderr.replace("\n", " ")
    assert "--topic" in run("acl", "add", *somebody, code=2).stderr
    assert "User:name" in run("acl", "add", "--allow-principal", "a", "--topic", "t", code=1).stderr
    assert "Read" in run("acl", "add", *somebody, "--topic", "t", "--operation", "Raed", code=1).stderr
    wrong = run("acl", "add", *somebody, "--topic", "t", "--operation", "ClusterAction", code=1).stderr
    assert "does not exist for resource type topic" in wrong.replace("\n", " ")
    assert "needs" in run("acl", "add", *somebody, "--consumer", "--topic", "t", code=2).stderr
    assert run("acl", "list").stdout == ""


def test_an_ordinary_user_may_do_the_operations_that_acls_allow(tmp_path: Path) -> None:
    with sparklog.start_local(data_dir=tmp_path, settings=OPEN) as local:
        admin = Admin(local.bootstrap_servers)
        admin.create_topic("open")
        admin.create_topic("closed")
        entry = Acl(ResourceType.TOPIC, PatternType.LITERAL, "open", ANONYMOUS, "*", Operation.READ, Permission.ALLOW)
        assert admin.create_acls([entry]) == 1
    with sparklog.start_local(data_dir=tmp_path, settings={"authorizer": "acl"}) as local:
        admin = Admin(local.bootstrap_servers)
        assert admin.list_topics() == ["open"]
        with pytest.raises(TopicAuthorizationFailedError):
            admin.describe_topic("closed")
        with pytest.raises(TopicAuthorizationFailedError):
            admin.delete_topic("open")
        with pytest.raises(ClusterAuthorizationFailedError):
            admin.create_acls([entry])
    with sparklog.start_local(data_dir=tmp_path) as local, pytest.raises(SecurityDisabledError):
        Admin(local.bootstrap_servers).describe_acls()


def test_elections_and_plans_name_the_missing_right(tmp_path: Path) -> None:
    with sparklog.start_local(data_dir=tmp_path, settings=OPEN) as local:
        Admin(local.bootstrap_servers).create_topic("t")
    with sparklog.start_local(data_dir=tmp_path, settings={"authorizer": "acl"}) as local:
        where = ("-b", local.bootstrap_servers)
        for words in (("elect-leaders", "preferred", "t:0"), ("reassign", "plan", "--topics", "t")):
            told = run_here(*words, *where)
            assert (told.returncode, "Describe on topic 't' is not allowed" in told.stderr) == (1, True), told.stderr
        for kind in ("preferred", "unclean"):
            told = run_here("elect-leaders", kind, *where)
            assert (told.returncode, "Alter on the cluster" in told.stderr) == (1, True), told.stderr


@pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")
def test_in_a_cluster_every_broker_goes_by_the_same_acls(tmp_path: Path) -> None:
    """Added at a broker that is not the controller, too, and there after a restart."""
    with sparklog.start_local(tmp_path, brokers=3, settings=OPEN) as cluster:
        addresses = cluster.bootstrap_servers.split(",")
        assert len(addresses) == 3
        for i, address in enumerate(addresses):
            acl = Acl(
                ResourceType.TOPIC, PatternType.LITERAL, f"t{i}", user("alice"), "*", Operation.READ, Permission.ALLOW
            )
            assert Admin(address).create_acls([acl]) == 1
            for other in addresses:
                until_reached(lambda o=other, a=acl: a in Admin(o).describe_acls(), f"ACL {i} at {other}")  # type: ignore[misc]
