"""Requests to the console's application, as a browser would send them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from starlette.testclient import TestClient

BASE = "http://127.0.0.1:8080"
ORIGIN = {"Origin": BASE}
HTMX = {"HX-Request": "true"}


def get(client: TestClient, path: str, status: int = 200, headers: Mapping[str, str] | None = None) -> str:
    response = client.get(path, headers=headers)
    assert response.status_code == status, response.text
    return response.text


def fields_of(page: str) -> dict[str, str]:
    """The hidden fields of the page's form, its token among them."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}
