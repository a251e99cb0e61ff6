"""Writes the pictures of the console's guide, docs/console/*.png, with a broker and a browser of its own.

    make console-pictures

The groups' lag is watched for a while first, so that there is a line to see.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from sparklog import Admin, Producer, TopicPartition
from sparklog.client.local_cluster import start_cluster
from tests.system.console_browser import console_process, open_browser, require_browser
from tests.system.console_world import SCRIPT, TRIPS_SCHEMA, World, world

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "console"
WATCHED_S = 75
BYTES_MAX = 200_000
ZONES = ("Harbour", "Museum", "Airport", "Old Town", "University")
QUERY = """SELECT zone, count(*) AS trips, round(avg(minutes), 1) AS minutes, max(_timestamp) AS newest
FROM trips
GROUP BY zone
ORDER BY trips DESC"""
PLACES: Mapping[str, tuple[str, str, tuple[int, int]]] = {
    "overview": ("/", "light", (1280, 760)),
    "messages": ("/topics/trips/messages?n=12", "light", (1280, 720)),
    "message": ("/topics/events/message?partition=0&offset=12", "dark", (1280, 760)),
    "group": ("/group?id=billing", "light", (1280, 720)),
    "schema": ("/schemas/subject?name=rides-value", "light", (1280, 1500)),
    "sql": (f"/sql?q={quote(QUERY)}", "dark", (1280, 620)),
    "phone": ("/topics", "dark", (390, 700)),
}
"""Path, colours, and size of the window, by the picture's name."""


def main() -> int:
    driver, browser = require_browser()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        with (
            world(scratch / "data", schemas=True) as filled,
            console_process(filled.address, "--allow-changes") as url,
            open_browser(scratch / "profile", driver, browser) as chrome,
        ):
            _make_lag(filled)
            for name, (path, scheme, size) in PLACES.items():
                _picture(chrome, url + path, scheme, size, PICTURES / f"{name}.png")
        with open_browser(scratch / "second-profile", driver, browser) as chrome:
            _picture_of_a_cluster(chrome)
    return 0


def _picture_of_a_cluster(chrome: Chrome) -> None:
    """Three brokers, one of which has been killed."""
    with (
        start_cluster(3) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        for name, partitions in {"trips": 6, "payments": 3}.items():
            admin.create_topic(name, partitions, configs={"min.insync.replicas": 2})
            for partition in range(partitions):
                for _ in range(1 + partition % 3):
                    producer.send(name, b"x" * 300_000, partition=partition)
        producer.flush()
        with console_process(cluster.bootstrap_servers) as url:
            cluster.brokers[2].kill()
            until = time.monotonic() + WATCHED_S
            while len(admin.describe_cluster().brokers) == 3 and time.monotonic() < until:
                time.sleep(0.5)
            _picture(chrome, url + "/", "light", (1280, 1180), PICTURES / "cluster.png")


def _make_lag(filled: World) -> None:
    """billing falls behind and catches up again."""
    end, committed = 0, 0
    until = time.monotonic() + WATCHED_S
    filled.admin.delete_group(SCRIPT)
    with Producer(filled.address) as producer:
        while time.monotonic() < until:
            for partition in range(3):
                producer.send_batch("trips", _trips(partition), partition=partition)
            producer.flush()
            latest = filled.admin.list_offsets({TopicPartition("trips", p): "latest" for p in range(3)})
            end = min(at.offset for at in latest.values())
            behind = round(60 + 50 * math.sin(time.monotonic() / 9) + 20 * math.sin(time.monotonic() / 3))
            committed = max(committed, end - behind)
            filled.admin.alter_group_offsets("billing", {TopicPartition("trips", p): committed for p in range(3)})
            time.sleep(0.5)


def _trips(partition: int) -> pa.Table:
    now_us = time.time_ns() // 1000
    columns = {
        "zone": [ZONES[(7 * n + partition) % len(ZONES)] for n in range(40)],
        "minutes": [round(5 + (n * 37 + partition * 11) % 50 / 2, 1) for n in range(40)],
        "pickup": [now_us - (40 - n) * 12_000_000 + partition * 3_000_000 for n in range(40)],
    }
    return pa.table(columns).cast(TRIPS_SCHEMA)


def _picture(chrome: Chrome, url: str, scheme: str, size: tuple[int, int], path: Path) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    chrome.get(url)
    for run in chrome.find_elements(By.CSS_SELECTOR, "[data-run]"):
        run.click()
        WebDriverWait(chrome, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#result td"))
    if chrome.find_elements(By.ID, "sizes"):
        WebDriverWait(chrome, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#sizes table"))
    assert chrome.save_screenshot(str(path))
    size_bytes = path.stat().st_size
    assert size_bytes <= BYTES_MAX, f"{path.name} has {size_bytes} bytes"
    print(f"{path.relative_to(PICTURES.parents[1])}: {size_bytes:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
