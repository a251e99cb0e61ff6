"""Logins at the console of a secured broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from sparklog import Admin
from sparklog.cli.errors import hint_for
from sparklog.console.app import make_app
from sparklog.console.guard import COOKIE
from sparklog.console.sessions import login_security
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.client_security import SecuritySettings
from sparklog.security.principals import user as principal
from tests.support.waiting import until
from tests.system.console_client import BASE, HTMX, ORIGIN, fields_of, get
from tests.system.secure_broker import PASSWORD, SecureBroker

PREFIX = "/sparklog"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    more = 'authorizer = "acl"\nsuper.users = "User:ANONYMOUS"\nconnection.failed.authentication.delay.ms = 10'
    broker = SecureBroker(tmp_path_factory.mktemp("login"), more=more)
    with Admin(broker.addresses["LOCAL"]) as admin:
        for user in ("ann", "bob"):
            admin.set_user_password(user, PASSWORD)
            admin.create_topic(f"of-{user}", 1)
            whose = ResourceType.TOPIC, PatternType.LITERAL, f"of-{user}", principal(user), "*"
            admin.create_acls([Acl(*whose, Operation.ALL, Permission.ALLOW)])
    yield broker
    assert broker.stop() == 0, broker.process.stderr


@pytest.fixture
def client(secure: SecureBroker) -> Iterator[TestClient]:
    template = login_security(SecuritySettings({"security.protocol": "SASL_PLAINTEXT"}))
    options = Options(secure.addresses["SASL"], allow_changes=True, base_path=PREFIX, login=template)
    app = make_app(options, real_environment(), hint=hint_for, round_s=0.1)
    with TestClient(app, base_url=BASE, follow_redirects=False) as made:
        yield made


def log_in(client: TestClient, user: str, password: str = PASSWORD, page: str = "/sparklog/login") -> int:
    given = fields_of(get(client, page)) | {"user": user, "secret": password}
    return client.post("/sparklog/login", data=given, headers=ORIGIN).status_code


def test_the_console_acts_as_the_user_of_the_session(client: TestClient, secure: SecureBroker) -> None:
    first = client.get("/sparklog/topics?q=of")
    assert (first.status_code, first.headers["Location"]) == (303, "/sparklog/login?next=%2Ftopics%3Fq%3Dof")
    part = client.get("/sparklog/groups", headers=HTMX)
    assert (part.status_code, part.headers["HX-Redirect"]) == (401, "/sparklog/login")
    assert client.post("/sparklog/sql", data={"q": "SELECT 1"}, headers=ORIGIN).status_code == 401
    assert get(client, "/health/live") == "alive\n"
    assert log_in(client, "ann", "wrong") == 401
    before = client.cookies[COOKIE]
    page = get(client, "/sparklog/login?next=/topics%3Fq%3Dof")
    given = fields_of(page) | {"user": "ann", "secret": PASSWORD}
    answer = client.post("/sparklog/login", data=given, headers=ORIGIN)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sparklog/topics?q=of")
    cookie = answer.headers["Set-Cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/sparklog"))
    assert client.cookies[COOKIE] != before  # a session that a stranger has set beforehand is not the one logged in
    topics = get(client, "/sparklog/topics")
    assert "of-ann" in topics
    assert "of-bob" not in topics
    assert "Log out ann" in topics
    assert PASSWORD not in topics
    get(client, "/sparklog/topics/of-bob", 403)
    assert log_in(TestClient(client.app, base_url=BASE, follow_redirects=False), "bob") == 303
    assert "of-bob" not in get(client, "/sparklog/topics")


def test_a_session_ends_with_the_logout_and_with_the_password(client: TestClient, secure: SecureBroker) -> None:
    assert log_in(client, "ann") == 303
    key = client.cookies[COOKIE]
    assert client.post("/sparklog/logout", data={}, headers=ORIGIN).status_code == 403  # another site logs nobody out
    fields = fields_of(get(client, "/sparklog/topics"))
    assert client.post("/sparklog/logout", data=fields, headers=ORIGIN).headers["Location"] == "/sparklog/login"
    client.cookies.clear()
    client.cookies.set(COOKIE, key)
    assert client.get("/sparklog/topics").status_code == 303
    with Admin(secure.addresses["LOCAL"]) as admin:
        admin.set_user_password("eve", PASSWORD)
        assert log_in(client, "eve") == 303
        admin.set_user_password("eve", "another one")
        # connections that have proved the earlier password do not let it in
        until(lambda: log_in(TestClient(client.app, base_url=BASE, follow_redirects=False), "eve") == 401, "refused")
        assert log_in(TestClient(client.app, base_url=BASE, follow_redirects=False), "eve", "another one") == 303
