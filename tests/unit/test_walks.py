"""The walks through the code (docs/internals/life-of-a-batch.md) name modules, functions and classes that exist. No
stretch of a walk names many."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.lake.model_log import ModelLog, settings_at, sync_of
from tests.unit.walks import PAGE, ROOT, count_returns, rows, walks

MODULES_MAX = 10
CREATE_TOPIC_MODULES_MAX = 10
LAKE_RETURNS_MAX = 20
THREAD_ROWS_MAX = 25


def defined(tree: ast.Module) -> set[str]:
    """Functions as they are named in the tables: `function`, `Class.method`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, functions)}
    return names


def test_seven_walks_of_few_modules() -> None:
    assert {heading: len(tables) for heading, tables in walks().items()} == {
        "A produced batch": 3,
        "A fetch": 3,
        "An offset commit": 2,
        "A commit of the Spark sink": 7,
        "A replica fetch": 4,
        "Creating a topic": 5,
        "A round of the lake": 3,
    }
    for table in [table for tables in walks().values() for table in tables]:
        assert [row.number for row in table] == list(range(1, len(table) + 1))
        assert len({row.module for row in table}) == len(table) <= MODULES_MAX


def test_a_topic_passes_few_modules() -> None:
    """From the broker that the client asks to the controller's decision, and on each other stretch."""
    client, asked, controller, *stored = walks()["Creating a topic"]
    for table in (client, [*asked, *controller], *stored):
        assert len({row.module for row in table}) <= CREATE_TOPIC_MODULES_MAX


def test_the_reader_of_a_round_of_the_lake_returns_to_few_modules(tmp_path: Path) -> None:
    """The round is a real one, of a table that exists; a model stands in the place of the log."""
    log, settings = ModelLog(pa.schema([("id", pa.int64())])), settings_at(tmp_path / "table")
    log.rows[0] = [{"id": 1}]
    sync, info = sync_of(log), log.newest()
    sync.round(info, settings, lambda _: None)
    log.rows[0].append({"id": 2})
    modules = {row.module: row.module for table in walks()["A round of the lake"] for row in table}
    model = Path(ModelLog.ends.__code__.co_filename).relative_to(ROOT).as_posix()
    modules[model] = "sparklog/lake/worker/topic_reader.py"
    assert 0 < count_returns(lambda: sync.round(info, settings, lambda _: None), modules) <= LAKE_RETURNS_MAX


@pytest.mark.parametrize(("module", "function"), sorted({row[1:] for row in rows()}))
def test_names_of_a_walk_exist(module: str, function: str) -> None:
    assert function in defined(ast.parse((ROOT / module).read_text(encoding="utf-8")))


def test_no_row_is_overlooked() -> None:
    found = [line for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    assert len(found) == len(rows())


def test_objects_in_the_table_of_threads_exist() -> None:
    section = PAGE.partition("## Objects and their threads")[2]
    found = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(found) <= THREAD_ROWS_MAX
    named = {name for line in found for name in re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", line)}
    code = [path for folder in ("sparklog", "broker_daemon", "datasource") for path in (ROOT / folder).rglob("*.py")]
    classes = {name for path in code for name in re.findall(r"(?m)^class (\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert not named - classes
