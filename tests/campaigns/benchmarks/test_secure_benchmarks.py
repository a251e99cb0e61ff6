"""Sparklog's side of the benchmark rows with security, with a real broker and few records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from sparklog import Admin, Producer
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import connect_for_data
from sparklog.errors import TopicAuthorizationFailedError
from sparklog.security.client_security import client_security
from tests.campaigns.benchmarks.context import Context
from tests.campaigns.benchmarks.rows import security
from tests.campaigns.benchmarks.rows.consume import consume
from tests.campaigns.benchmarks.rows.produce import produce
from tests.campaigns.benchmarks.secure_servers import PLAIN, SCRAM_ACL, TLS
from tests.support.processes import MeasurementError

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with Context(0.001, tmp_path_factory.mktemp("scratch")) as made:
        yield made


@pytest.mark.parametrize("listener", [PLAIN, TLS, SCRAM_ACL])
def test_records_go_through_every_listener(context: Context, listener: str) -> None:
    size = security.VALUE_BYTES
    for measure in (produce, consume):
        found = measure(context, peer=False, where=listener, value_bytes=size, records=1000)
        assert found.extra["records"] == 1000
    assert found.extra["value_bytes"] == 1000 * size


@pytest.mark.parametrize("listener", [PLAIN, TLS, SCRAM_ACL])
def test_no_connection_goes_around_the_listener(context: Context, listener: str) -> None:
    server = context.sparklog(TLS)
    settings = client_security(server.client(listener).get("security", {}))
    with closing(connect_for_data(parse_bootstrap(server.address(listener))[0], security=settings)) as connection:
        assert not connection.uses_local_socket


def test_only_the_acls_let_the_user_in(context: Context) -> None:
    server = context.sparklog(TLS)
    with Admin(server.address(PLAIN)) as admin:
        admin.create_topic("another", partitions=1)
    producer = Producer(server.address(SCRAM_ACL), **server.client(SCRAM_ACL))
    with producer, pytest.raises(TopicAuthorizationFailedError):
        producer.send("another", b"x").result(30)


def test_logins_are_counted(context: Context) -> None:
    found = security.logins(context, peer=False, at_once=2)
    assert found.extra["logins"] == 50
    assert found.value > 0


def test_a_wrong_password_is_no_login(context: Context) -> None:
    server, authority = context.sparklog(TLS), context.certificates.authority
    with pytest.raises(MeasurementError, match="not one login"):
        context.client(
            "logins",
            system="sparklog",
            bootstrap=server.address(SCRAM_ACL),
            authority=str(authority),
            username="bench",
            password="wrong",
            count=1,
            at_once=1,
        )
