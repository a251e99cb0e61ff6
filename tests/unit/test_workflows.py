"""The workflows and forms in .github/: they parse, and the commands that they run exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = GITHUB / "workflows"


def read(path: Path) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])


def test_the_checks_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    found = {path.stem: re.findall(r"\bmake ([a-z-]+)", commands(read(path))) for path in WORKFLOWS.glob("*.yml")}
    assert {name for each in found.values() for name in each} <= targets
    assert {"lint", "test"} <= set(found["check"])
    assert "dist" in found["release"]


def test_every_supported_python_is_tested() -> None:
    tested = read(WORKFLOWS / "check.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f">={tested[0]}" == project["requires-python"]
    # the Makefile looks for these, too; an unquoted 3.10 would be the number 3.1
    names = re.search(r"(?m)^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert names is not None
    assert {f"python{version}" for version in tested} == set(re.findall(r"python3\.\d+", names[1]))


def test_only_the_publishing_job_gets_more_than_read_access() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}, path.name
        more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        assert more == ({"publish": {"id-token": "write"}} if path.stem == "release" else {}), path.name


def test_every_question_of_a_form_has_an_id_and_a_label() -> None:
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert {path.stem for path in forms} == {"bug", "feature"}
    for path in forms:
        form = read(path)
        questions = [part for part in form["body"] if part["type"] != "markdown"]
        assert form["name"], path.name
        assert form["description"], path.name
        assert len({part["id"] for part in questions}) == len(questions), path.name
        assert all(part["attributes"]["label"] for part in questions), path.name
        assert any(part.get("validations", {}).get("required") for part in questions), path.name
