"""Reading a broker's metrics page, and the series that a dashboard or rules ask for."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "conf" / "prometheus" / "sparklog-alerts.yml"
DASHBOARD = ROOT / "conf" / "grafana" / "sparklog.json"
ONLY_IN_A_CLUSTER = re.compile("zookeeper|put_aside")
"""Series that a broker which is alone does not have."""
PROMETHEUS_OWN = {"up"}
"""It makes them itself."""
_NAME = re.compile(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()")
_WORDS = {"by", "without", "and", "or", "unless", "on", "ignoring", "group_left", "group_right", "bool", "offset"}


def get(url: str, accept: str = "") -> tuple[str, str]:
    """Content type and body."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for family in parse_text(text) for s in family.samples}


def exported(url: str) -> set[str]:
    """The names of all samples of a page."""
    return {name for name, _ in samples(get(url)[1])}


def names_in(expression: str) -> set[str]:
    """The series that a PromQL expression reads."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    return set(_NAME.findall(bare)) - _WORDS


def expressions(value: Any) -> Iterator[str]:
    """All PromQL in a dashboard."""
    if isinstance(value, dict):
        yield from (value[key] for key in ("expr", "definition") if isinstance(value.get(key), str))
        for inner in value.values():
            yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def of_the_dashboard() -> set[str]:
    """The series that the dashboard reads."""
    used: set[str] = set()
    for expression in expressions(json.loads(DASHBOARD.read_text(encoding="utf-8"))):
        found = re.match(r"label_values\((\w+)", expression)
        used |= {found[1]} if found else names_in(expression)
    return used


def of_the_alerts() -> set[str]:
    """The series that the rules read."""
    text = RULES.read_text(encoding="utf-8")
    found = re.findall(r"(?m)^ +expr: (.+)$", text)
    assert len(found) == text.count("- alert:") > 10
    return set().union(*map(names_in, found)) - PROMETHEUS_OWN
