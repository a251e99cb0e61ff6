"""The console in a real browser: every page, with real data, without a message in the browser's own console; and clicks
have their effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from sparklog import Producer
from tests.system.console_browser import console_process, open_browser, require_browser, text_of
from tests.system.console_world import HOSTILE, LARGE_BYTES, SCRIPT, World, world

PATIENCE_S = 30
PAGES = (
    "/",
    "/cluster/sizes",
    "/topics",
    "/topics?q=tri&internal=1",
    "/topics/trips",
    "/topics/trips/messages",
    "/topics/trips/messages?start=oldest&columns=zone&n=10",
    "/topics/events/messages?mode=hex",
    "/topics/events/message?partition=0&offset=20",
    "/topics/large/messages",
    "/topics/trips/segments",
    "/topics/trips/batches?partition=1",
    "/topics/orders/producers",
    "/topics/trips/produce",
    "/topics/events/produce",
    "/groups",
    "/group?id=live",
    "/spark",
    "/transactions",
    "/transaction?id=shop-stuck",
    "/transactions/hanging?topic=orders",
    "/schemas",
    "/sql",
    "/change/create-topic?topic=made&partitions=2",
    "/change/add-partitions?topic=trips&total=4",
    "/change/set-config?topic=trips&name=retention.ms&value=1000",
    "/change/delete-topic?topic=trips",
    "/change/delete-group?group=billing",
    "/change/abort-transaction?id=shop-stuck",
    "/change/abort-hanging?topic=orders&partition=0&producer_id=1",
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_browser()
    with world(tmp_path_factory.mktemp("console") / "data") as made:
        yield made


@pytest.fixture(scope="module")
def console(filled: World) -> Iterator[str]:
    with console_process(filled.address, "--allow-changes") as url:
        yield url


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver, browser = require_browser()
    with open_browser(tmp_path_factory.mktemp("profile"), driver, browser) as made:
        yield made


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """One whose own console has nothing to complain about when the test ends."""
    chromium.get_log("browser")  # what earlier tests have left
    yield chromium
    assert chromium.get_log("browser") == []


def until(browser: Chrome, condition: Callable[[Chrome], object], what: str) -> None:
    WebDriverWait(browser, PATIENCE_S, 0.05).until(condition, what)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_shown(browser: Chrome, console: str, path: str) -> None:
    browser.get(console + path)
    assert browser.find_elements(By.CSS_SELECTOR, "h1, h2")
    assert not browser.find_elements(By.CSS_SELECTOR, "[role=alert]")
    assert "That did not work" not in text_of(browser)


def test_fragments_that_load_later_arrive(browser: Chrome, console: str) -> None:
    browser.get(console + "/")
    until(browser, lambda b: "Largest topics" in text_of(b), "the sizes")
    assert "trips" in browser.find_element(By.ID, "sizes").text


@pytest.mark.parametrize(
    "path",
    [
        "/topics/hostile/messages",
        "/topics/hostile/message?partition=0&offset=0",
        f"/topics/hostile/messages?q={quote(SCRIPT)}",
        "/groups",
        f"/group?id={quote(SCRIPT)}",
        f"/topics?q={quote(HOSTILE)}",
    ],
)
def test_users_content_is_only_text(browser: Chrome, console: str, path: str) -> None:
    browser.get(console + path)
    assert browser.title != "hacked"
    assert "<script>" in browser.page_source.replace("&lt;script&gt;", "<script>")
    scripts = {s.get_attribute("src") for s in browser.find_elements(By.TAG_NAME, "script")}
    assert scripts == {f"{console}/static/htmx.min.js", f"{console}/static/console.js"}
    assert not browser.find_elements(By.TAG_NAME, "img")


def test_a_hostile_result_of_sql_is_only_text(browser: Chrome, console: str) -> None:
    browser.get(f"{console}/sql?q={quote('SELECT decode(value) AS v FROM hostile')}")
    browser.find_element(By.CSS_SELECTOR, "[data-run]").click()
    until(browser, lambda b: "1 row" in text_of(b, "#result"), "the result")
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, "#result td").text
    assert browser.title != "hacked"


def test_keys_and_search_while_typing(browser: Chrome, console: str) -> None:
    browser.get(console + "/topics")
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    search = browser.switch_to.active_element
    assert search.get_attribute("name") == "q"
    search.send_keys("arg")
    until(browser, lambda b: text_of(b, "#topics").count("\n") <= 2, "one topic")
    assert "large" in browser.find_element(By.ID, "topics").text
    assert browser.current_url.endswith("q=arg")
    search.send_keys(Keys.ESCAPE)
    assert browser.switch_to.active_element.tag_name == "body"
    browser.get(console + "/topics")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_sql_with_ctrl_enter(browser: Chrome, console: str) -> None:
    browser.get(console + "/sql")
    area = browser.find_element(By.ID, "q")
    area.send_keys("SELECT zone, count(*) AS n FROM trips GROUP BY zone ORDER BY zone", Keys.CONTROL, Keys.ENTER)
    until(browser, lambda b: "4 rows" in text_of(b, "#result"), "the result")
    cells = [c.text for c in browser.find_elements(By.CSS_SELECTOR, "#result tbody td")]
    assert cells[:4] == ["Airport", "125", "Harbour", "125"]
    area.clear()
    area.send_keys("SELECT zone FROM nowhere", Keys.CONTROL, Keys.ENTER)
    until(browser, lambda b: "nowhere" in text_of(b, "#result"), "DuckDB's message")


def test_the_tail_shows_new_records(browser: Chrome, console: str, filled: World) -> None:
    browser.get(console + "/topics/events/messages?n=5&partition=1&tail=1")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#rows tr")) == 5
    with Producer(filled.address) as producer:
        for n in range(3):
            producer.send("events", value=b"just now %d" % n, partition=1).result(60)
            until(browser, lambda b, n=n: f"just now {n}" in text_of(b, "#rows"), "the record")  # type: ignore[misc]
    first = browser.find_element(By.CSS_SELECTOR, "#rows tr")
    assert "just now 2" in first.text
    assert browser.find_element(By.ID, "rows").text.count("just now") == 3


def test_a_large_value_is_shown_cut(browser: Chrome, console: str) -> None:
    browser.get(console + "/topics/large/messages")
    assert "9.5 MiB" in text_of(browser)
    assert len(browser.page_source) < 20_000
    browser.get(console + "/topics/large/message?partition=0&offset=0")
    assert "This is only its beginning." in text_of(browser)
    assert len(browser.page_source) < 100_000 < LARGE_BYTES


def test_the_lag_is_a_line(browser: Chrome, console: str) -> None:
    browser.get(console + "/group?id=billing")
    until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "svg.chart polyline"), "two measurements")
    line = browser.find_element(By.CSS_SELECTOR, "svg.chart polyline")
    assert line.value_of_css_property("stroke-width") == "2px"
    assert "Lag in records from 20" in str(
        browser.find_element(By.CSS_SELECTOR, "svg.chart").get_attribute("aria-label")
    )


def test_offsets_are_reset_by_clicking(browser: Chrome, console: str, filled: World) -> None:
    browser.get(console + "/group?id=billing")
    Select(browser.find_element(By.NAME, "to")).select_by_visible_text("offset")
    browser.find_element(By.NAME, "value").send_keys("7")
    browser.find_element(By.XPATH, "//button[text()='Reset offsets…']").click()
    until(browser, lambda b: "Set these 3 offsets of group billing?" in text_of(b), "the question")
    before = {tp.partition: o.offset for tp, o in filled.admin.list_group_offsets("billing").items()}
    assert before == {0: 0, 1: 40, 2: 80}
    browser.find_element(By.CSS_SELECTOR, "button.danger").click()
    until(browser, lambda b: "Set 3 offsets of group billing." in text_of(b), "what was done")
    assert {o.offset for o in filled.admin.list_group_offsets("billing").values()} == {7}


def test_a_transaction_is_aborted_by_clicking(browser: Chrome, console: str, filled: World) -> None:
    browser.get(console + "/transactions")
    browser.execute_script("document.querySelector('a[href$=shop-stuck]').click()")
    until(browser, lambda b: "Written to" in text_of(b), "the transaction")
    browser.find_element(By.LINK_TEXT, "Abort transaction…").click()
    until(browser, lambda b: "Abort the open transaction of shop-stuck?" in text_of(b), "the question")
    assert filled.admin.describe_transaction("shop-stuck").summary.state == "Ongoing"  # type: ignore[union-attr]
    browser.find_element(By.CSS_SELECTOR, "button.danger").click()
    until(browser, lambda b: "Aborted the transaction of shop-stuck" in text_of(b), "what was done")
    assert filled.admin.describe_transaction("shop-stuck").summary.state == "CompleteAbort"  # type: ignore[union-attr]


def test_on_a_phone_no_element_is_wider_than_the_screen(browser: Chrome, console: str) -> None:
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for path in PAGES:
            browser.get(console + path)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 360, (path, wide)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(("scheme", "ground"), [("dark", "rgb(22, 22, 20)"), ("light", "rgb(255, 255, 255)")])
def test_dark_and_light(browser: Chrome, console: str, scheme: str, ground: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        browser.get(console + "/topics")
        page = browser.find_element(By.TAG_NAME, "html")
        assert page.value_of_css_property("background-color").replace("rgba", "rgb").replace(", 1)", ")") == ground
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_no_other_address_is_requested(chromium: Chrome, console: str) -> None:
    """Of all that the page has loaded nothing comes from anywhere else."""
    chromium.get(console + "/topics/trips")
    loaded = chromium.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert len(loaded) >= 3
    assert all(name.startswith(console) for name in loaded)
