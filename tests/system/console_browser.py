"""A browser for the console's tests: Debian's chromium with its driver; nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

DRIVER, BROWSER = "chromedriver", "chromium"
MISSING = "no browser: apt-get install chromium chromium-driver"
SIZE = (1280, 900)
STOP_S = 60


def require_browser() -> tuple[str, str]:
    """Paths of the driver and of the browser. Skips the test if one is missing."""
    driver, browser = shutil.which(DRIVER), shutil.which(BROWSER)
    if driver is None or browser is None:
        pytest.skip(MISSING)
    return driver, browser


@contextlib.contextmanager
def open_browser(profile: Path, driver: str, browser: str, *, arguments: Sequence[str] = ()) -> Iterator[Chrome]:
    """Headless, and with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", *arguments):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument(f"--window-size={SIZE[0]},{SIZE[1]}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = Chrome(options, Service(driver))
    try:
        yield made
    finally:
        made.quit()


@contextlib.contextmanager
def console_process(address: str, *arguments: str) -> Iterator[str]:
    """`sparklog console` for the brokers at `address`, on a free port; gives its URL."""
    command = [sys.executable, "-m", "sparklog.cli", "console", "-b", address, "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"console on (http://\S+)\n", line)
        try:
            assert found, line + process.stderr.read()
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=STOP_S)
            assert "Traceback" not in errors, errors


def text_of(browser: Chrome, selector: str = "body") -> str:
    """Text of the page, read in one step, because parts of pages are replaced at any time."""
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))
