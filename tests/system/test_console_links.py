"""Every link of every page of the console leads to the page that it names, behind a proxy with a path of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import sparklog
from sparklog.console.app import make_app
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.types import TopicPartition
from tests.support.waiting import until
from tests.system.console_links import crawl, names_in, parameters, shape
from tests.system.console_world import World, world

REACHED = {
    "/", "/cluster/sizes", "/topics", "/topics/*", "/topics/*/messages", "/topics/*/message", "/topics/*/value",
    "/topics/*/segments", "/topics/*/batches", "/topics/*/producers", "/topics/*/tail", "/groups", "/group",
    "/transactions", "/transaction", "/transactions/hanging", "/spark", "/sql", "/change/abort-transaction",
    "/topics/*/produce", "/schemas", "/schemas/subject",
}  # fmt: skip
BASE = "/tools/sparklog"
ADDRESS = re.compile(r'\s(?:href|src|action|hx-get|hx-post)="(/[^"]*)"')
SPACED_GROUP = " of spaces "


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("console") / "data", schemas=True) as made:
        made.admin.alter_group_offsets(SPACED_GROUP, {TopicPartition("events", 0): 0})
        with sparklog.Producer(made.address) as producer:
            for _ in range(60):  # more batches than one page shows
                producer.send("events", value=b"one", partition=0).result(60)
        yield made


def test_every_link_leads_to_the_page_that_it_names(filled: World) -> None:
    options = Options(filled.address, allow_changes=True, base_path=BASE)
    app = make_app(options, real_environment(), round_s=0.1)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        until(lambda: "billing" in client.get("/groups").text, "the watch over groups has come round")

        def get(path: str) -> tuple[int, str]:
            response = client.get(BASE + path)
            assert [a for a in ADDRESS.findall(response.text) if not a.startswith(BASE + "/")] == [], path
            return response.status_code, response.text.replace(f'="{BASE}/', '="/')

        pages = crawl(get)
    assert names_in(pages) >= REACHED
    of_0 = {shape(path).partition("?")[0] for path in pages if parameters(path).get("partition") == "0"}
    assert of_0 >= {f"/topics/*/{page}" for page in ("messages", "message", "value", "batches", "producers")}
    at_0 = {
        shape(path).partition("?")[0]
        for path in pages
        if "0" in (parameters(path).get("offset"), parameters(path).get("value"))
    }
    assert at_0 >= {f"/topics/*/{page}" for page in ("messages", "message", "batches")}
