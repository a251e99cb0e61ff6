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
from tests.support.cli import run_here
from tests.support.waiting import until_reached

OPEN = {"authorizer": "acl", "super.users": "User:ANONYMOUS"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[sparklog.LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path / "broker-data", settings=OPEN) as local:
        yield local


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
