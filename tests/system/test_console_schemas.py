"""The console's pages of a schema registry, over HTTP and in a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from starlette.testclient import TestClient

import sparklog
from sparklog.cli.errors import hint_for
from sparklog.client.net.registry_address import registry_url
from sparklog.client.net.registry_client import RegistryClient
from sparklog.console.app import make_app
from sparklog.console.sessions import login_security
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.client_security import SecuritySettings, client_security
from sparklog.security.principals import user
from tests.support.cli import run_here
from tests.system.console_browser import console_process, open_browser, require_browser, text_of
from tests.system.console_client import BASE, HTMX, ORIGIN, fields_of, get
from tests.system.console_links import rows_of
from tests.system.console_world import HOSTILE, RIDE_FIELDS, World, world
from tests.system.secure_broker import PASSWORD, SecureBroker

PATIENCE_S = 30
RIDE = {"type": "record", "name": "Ride", "fields": RIDE_FIELDS}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("schemas") / "data", schemas=True) as made:
        yield made


def client_of(address: str, url: str = "") -> TestClient:
    options = Options(address, request_timeout_ms=30_000, registry_url=url)
    return TestClient(make_app(options, real_environment(), hint=hint_for), base_url=BASE)


@pytest.fixture(scope="module")
def client(filled: World) -> Iterator[TestClient]:
    with client_of(filled.address) as made:
        yield made


def test_subjects_are_listed_with_their_topics(client: TestClient) -> None:
    page = get(client, "/schemas")
    rows = {row[0]: row[1:] for row in rows_of(page)}
    assert rows["rides-value"] == ["rides value", "AVRO", "2", "2", rows["rides-value"][4], "BACKWARD", "READWRITE"]
    assert rows["orders-value"][-2] == "FULL_TRANSITIVE"
    assert rows["places"][0] == "–", "no topic is called places"
    assert 'href="/topics/rides"' in page
    part = get(client, "/schemas?q=RIDES", headers=HTMX)
    assert [row[0] for row in rows_of(part)] == ["rides-key", "rides-value"] and "<html" not in part


def test_a_subject_has_versions_text_differences_and_columns(client: TestClient) -> None:
    page = get(client, "/schemas/subject?name=rides-value")
    assert 'added <code>tip</code> <span class="faint">null | double = null</span>' in page
    assert '<span class="plus">+       &#34;name&#34;: &#34;tip&#34;,' in page
    assert ["tip", "double", ""] in rows_of(page) and ["id", "int64", "key"] in rows_of(page)
    first = get(client, "/schemas/subject?name=rides-value&version=1")
    assert "Differences" not in first
    compared = get(client, "/schemas/subject?name=rides-value&version=1&compare=2")
    assert "removed <code>tip</code>" in compared
    assert "Place (places, version 1)" in get(client, "/schemas/subject?name=trips-from")
    assert "Used by the schemas with the ids" in get(client, "/schemas/subject?name=places")
    topic = get(client, "/topics/rides")
    assert 'href="/schemas/subject?name=rides-value"' in topic and 'href="/schemas/subject?name=rides-key"' in topic
    assert "/schemas/subject" not in get(client, "/topics/trips")


def test_a_missing_subject_or_version_is_named(client: TestClient) -> None:
    assert "does not exist" in get(client, "/schemas/subject?name=nowhere", 404)
    assert "has no version 9" in get(client, "/schemas/subject?name=rides-value&version=9", 404)
    assert "a whole number is needed" in get(client, "/schemas/subject?name=rides-value&version=x", 400)
    get(client, "/schemas/subject", 404)


def test_a_hostile_subject_is_only_text(client: TestClient) -> None:
    for page in (get(client, "/schemas"), get(client, f"/schemas/subject?name={quote(HOSTILE, safe='')}")):
        assert "<script>document" not in page and "<img" not in page
    assert "\\u202e" in page and "\u202e" not in page


def test_a_schema_is_checked_and_not_registered(client: TestClient) -> None:
    form = fields_of(get(client, "/schemas/subject?name=rides-value"))
    cases = [
        (json.dumps(RIDE), "", "Compatible."),
        ('"int"', "", "TYPE_MISMATCH"),
        ("{", "", "The registry refuses the schema."),
        ('"int"', "a=b", "a reference is NAME=SUBJECT:VERSION"),
        ('"int"', "a=b:1", "does not exist"),
    ]
    for schema, references, expected in cases:
        fields = form | {"type": "AVRO", "schema": schema, "references": references}
        answer = client.post("/schemas/check", data=fields, headers=ORIGIN)
        assert answer.status_code == 200 and expected in answer.text, schema
    forged = client.post("/schemas/check", data=form | {"token": "x", "type": "AVRO", "schema": "x"}, headers=ORIGIN)
    assert forged.status_code == 403
    assert "<dd>2</dd>" in get(client, "/schemas/subject?name=rides-value")


def test_a_check_shows_the_effects_on_the_topic(tmp_path: Path) -> None:
    settings = {"auto.create.typed.topics": True}
    with (
        sparklog.start_local(tmp_path / "data", kafka=True, settings=settings) as local,
        client_of(local.bootstrap_servers) as client,
    ):
        registry = RegistryClient(local.schema_registry_url)
        first = {"type": "record", "name": "C", "fields": [{"name": "n", "type": "long"}]}
        registry.ask("POST", ["subjects", "c-value", "versions"], body={"schema": json.dumps(first)})
        form = fields_of(get(client, "/schemas/subject?name=c-value"))
        for field, expected in (
            ({"name": "s", "type": "string", "default": ""}, "<li>topic c gets the column s STRING</li>"),
            (
                {"name": "n", "type": "double"},
                "Not compatible.",
            ),
        ):
            fields = {field["name"]: field} if field["name"] == "n" else {"n": first["fields"][0], "s": field}
            schema = json.dumps(first | {"fields": list(fields.values())})
            answer = client.post("/schemas/check", data=form | {"type": "AVRO", "schema": schema}, headers=ORIGIN)
            assert answer.status_code == 200 and expected in answer.text
        assert "which has no form for all values of long (version 1)" in answer.text
        assert "<li>topic" not in answer.text


def test_a_console_without_a_registry_shows_the_way_to_one(tmp_path: Path, filled: World) -> None:
    with sparklog.start_local(tmp_path / "data") as plain, client_of(plain.bootstrap_servers) as client:
        page = get(client, "/schemas")
        assert "--url https://HOST:PORT" in page and "schema.registry.listeners" in page
    with client_of(filled.address, "http://127.0.0.1:1") as client:
        assert "http://127.0.0.1:1 does not answer" in get(client, "/schemas", 503)
        assert get(client, "/topics/rides"), "other pages do not need the registry"


class Large(BaseHTTPRequestHandler):
    """A registry with 10,000 subjects that stops to answer about a subject's versions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/subjects":
            body: object = [f"s{i:05}-value" for i in range(10_000)]
        elif self.path.startswith("/subjects/s00003"):
            self.close_connection = True
            return
        elif self.path.endswith("/versions"):
            body = [1]
        elif self.path.endswith("/referencedby"):
            body = []
        elif "/versions/" in self.path:
            body = {"subject": "s", "version": 1, "id": 2**40, "schema": "no JSON", "ts": 10**18}
        else:
            body = {"compatibilityLevel": "NONE", "mode": "READWRITE"}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


class Refusing(BaseHTTPRequestHandler):
    """A registry with other users than the cluster."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_large_registry_is_shown_page_by_page(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Large) as url, client_of(filled.address, url) as client:
        page = get(client, "/schemas")
        assert "1 to 25 of 10,000 subjects" in page and "does not answer" in page
        rows = rows_of(page)
        assert rows[2][3:6] == ["1", "1", "1099511627776"] and rows[3][3] == "–"
        assert "s09999-value" in get(client, "/schemas?page=400") and "s04321" in get(client, "/schemas?q=s04321")
        assert "no JSON" in get(client, "/schemas/subject?name=s00001-value")
        listed = run_here("schema", "list", "--url", url)
        assert listed.stdout.count("\n") == 10_000 and "a prefix of fewer subjects" in listed.stderr
        monkeypatch.setattr("sparklog.console.pages.schemas.PAGE_S", 0.0)
        assert "25 subjects are shown without their versions" in get(client, "/schemas?page=2")


def test_a_user_sees_the_subjects_of_own_topics(tmp_path: Path) -> None:
    more = 'authorizer = "acl"\nsuper.users = "User:ANONYMOUS"\nschema.registry.listeners = "https://127.0.0.1:0"'
    secure = SecureBroker(tmp_path, more=more)
    stdout = secure.process.process.stdout
    assert stdout is not None
    stdout.readline()
    with sparklog.Admin(secure.addresses["LOCAL"]) as admin:
        for name in ("ann", "bob"):
            admin.set_user_password(name, PASSWORD)
            place = ResourceType.TOPIC, PatternType.LITERAL, f"of-{name}", user(name), "*"
            admin.create_acls([Acl(*place, one, Permission.ALLOW) for one in (Operation.READ, Operation.WRITE)])
    template = login_security(SecuritySettings({"security.protocol": "SASL_SSL", "ssl.ca.location": str(secure.ca)}))
    app = make_app(Options(secure.addresses["BOTH"], login=template), real_environment(), hint=hint_for)
    with TestClient(app, base_url=BASE) as first:
        for name in ("ann", "bob"):
            client = first if name == "ann" else TestClient(app, base_url=BASE)
            fields = fields_of(get(client, "/login")) | {"user": name, "secret": PASSWORD}
            assert client.post("/login", data=fields, headers=ORIGIN).status_code == 200
            registered = secure.client(name) | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(secure.ca)}
            _register(secure, registered, f"of-{name}-value")
            rows = {row[0]: row for row in rows_of(get(client, "/schemas"))}
            assert list(rows) == [f"of-{name}-value"]
            assert rows[f"of-{name}-value"][6:] == ["–", "–"], "the level needs another permission"
            assert "Log out" in get(client, "/schemas/subject?name=of-ann-value", 200 if name == "ann" else 403)
    with served(Refusing) as url:
        options = Options(secure.addresses["BOTH"], login=template, registry_url=url)
        with TestClient(make_app(options, real_environment()), base_url=BASE) as client:
            fields = fields_of(get(client, "/login")) | {"user": "ann", "secret": PASSWORD}
            assert client.post("/login", data=fields, headers=ORIGIN).status_code == 200
            assert "SASL_AUTHENTICATION_FAILED" in get(client, "/schemas", 400)
            assert "Log out ann" in get(client, "/topics"), "the session goes on"
    assert secure.stop() == 0, secure.process.stderr


def _register(secure: SecureBroker, settings: dict[str, str], subject: str) -> None:
    security = client_security(settings)
    client = RegistryClient(registry_url(secure.addresses["BOTH"], security), security)
    client.ask("POST", ["subjects", subject, "versions"], body={"schema": '"int"'})


@pytest.fixture(scope="module")
def console(filled: World) -> Iterator[str]:
    require_browser()
    with console_process(filled.address) as url:
        yield url


@pytest.fixture(scope="module")
def browser(console: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver, chromium = require_browser()
    with open_browser(tmp_path_factory.mktemp("profile"), driver, chromium) as made:
        yield made
        assert made.get_log("browser") == []


def until_shown(browser: Chrome, text: str) -> None:
    """Wait for a text: the page of a link or a form can come later than the end of `click`."""
    WebDriverWait(browser, PATIENCE_S, 0.05).until(lambda b: text in text_of(b), text)


def test_a_reader_finds_a_difference_by_clicking(browser: Chrome, console: str) -> None:
    browser.get(console + "/")
    browser.find_element(By.LINK_TEXT, "Schemas").click()
    browser.find_element(By.CSS_SELECTOR, "[data-search]").send_keys("rides-v")
    until_shown(browser, "1 to 1 of 1 subjects")
    browser.find_element(By.LINK_TEXT, "rides-value").click()
    until_shown(browser, "added tip null | double = null")
    assert '+       "name": "tip",' in text_of(browser, ".diff")
    browser.find_element(By.NAME, "schema").send_keys('"int"')
    browser.find_element(By.CSS_SELECTOR, "button.main").click()
    until_shown(browser, "Not compatible.")
    browser.get(f"{console}/schemas/subject?name={quote(HOSTILE, safe='')}")
    assert browser.title != "hacked" and not browser.find_elements(By.TAG_NAME, "img")
    browser.find_element(By.LINK_TEXT, "Schemas").click()
    browser.find_element(By.LINK_TEXT, "rides").click()
    browser.find_element(By.LINK_TEXT, "rides-key").click()
    until_shown(browser, "key of topic rides")
