"""The documents are true: every code block of the README is run, the guide's Python too, and its tables are
generated."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINE_CHARS_MAX = 120
BIN = Path(sys.executable).parent

_BLOCK = re.compile(r"(?:<!-- test: ([^>]*) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return (test mark, language, code) of every fenced block."""
    return [(m[1] or "", m[2], m[3]) for m in _BLOCK.finditer(text)]


def block(kind: str) -> str:
    (code,) = [code for marked, _, code in blocks(README) if marked == kind]
    return code


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | more


def execute(command: list[str], directory: Path, **env: str) -> str:
    result = subprocess.run(
        command, cwd=directory, env=environment(**env), capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def test_no_block_of_the_readme_is_skipped() -> None:
    kinds = [kind for kind, _, _ in blocks(README)]
    assert kinds == ["", "python", "spark (continues the block above)", "broker", "sh", "spark-submit"]


def test_the_two_commands_exist() -> None:
    commands = re.findall(r"(?m)^make (\S+)", blocks(README)[0][2])
    assert commands == ["demo", "test"]
    for target in commands:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_the_python_example(tmp_path: Path) -> None:
    out = execute([sys.executable, "-c", block("python")], tmp_path)
    assert [line.split()[1:] for line in out.splitlines()[1:]] == [
        ["Harbour", "8.0"],
        ["Harbour", "12.5"],
        ["Airport", "41.0"],
    ]
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 10


@pytest.mark.spark
def test_the_spark_example(tmp_path: Path) -> None:
    spark = block("spark (continues the block above)")
    out = execute([sys.executable, "-c", block("python") + spark], tmp_path)
    assert re.findall(r"\|(\w+)\| +(\d+)\|", out) == [("Airport", "1"), ("Harbour", "1")]
    assert len([line for line in spark.splitlines() if line.strip()]) <= 15


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The README's broker, on a free port, in the directory where its commands are run; and its address."""
    directory = tmp_path_factory.mktemp("readme")
    command = block("broker").strip().removesuffix("&").split()
    with subprocess.Popen(
        [str(BIN / command[0]), *command[1:], "--listen", "127.0.0.1:0"],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        address = process.stdout.readline().removeprefix("listening on ").strip()
        assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
        (directory / "notebooks").symlink_to(ROOT / "notebooks")
        execute(["bash", "-euo", "pipefail", "-c", block("sh")], directory, SPARKLOG_BOOTSTRAP_SERVERS=address)
        yield directory, address
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_command_line_examples(story: tuple[Path, str]) -> None:
    directory, address = story
    out = execute([str(BIN / "sparklog"), "consume", "rides", "-b", address], directory)
    assert sorted(out.splitlines()) == ['{"zone":"Airport","minutes":41.0}', '{"zone":"Harbour","minutes":12.5}']


@pytest.mark.nightly
@pytest.mark.spark
def test_the_spark_submit_example(story: tuple[Path, str]) -> None:
    directory, address = story
    assert (BIN / "spark-submit").exists()
    out = execute(
        ["bash", "-euo", "pipefail", "-c", block("spark-submit")], directory, SPARKLOG_BOOTSTRAP_SERVERS=address
    )
    assert out.splitlines()[-1] == '{"zone":"Airport","minutes":41.0}'
    # what has been copied is not copied again
    again = block("spark-submit").splitlines()[1]
    assert "0 records read" in execute(["bash", "-c", again], directory, SPARKLOG_BOOTSTRAP_SERVERS=address)


@pytest.mark.parametrize("number", range(len(blocks(GUIDE))))
def test_the_guides_python(number: int, tmp_path: Path) -> None:
    _, language, code = blocks(GUIDE)[number]
    assert language == "python"
    assert execute([sys.executable, "-W", "error", "-c", code], tmp_path)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_tables", ROOT / "docs" / "generate_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_the_codes() -> None:
    generator = _generator()
    texts = [path.read_text(encoding="utf-8") for path in generator.WITH_TABLES]
    assert [generator.regenerate(text) for text in texts] == texts, "make conf"
    assert set(re.findall(r"<!-- table: ([a-z -]+) -->", "".join(texts))) == set(generator.tables())


def test_an_old_table_is_noticed() -> None:
    generator = _generator()
    assert generator.regenerate(GUIDE.replace("| `linger.ms` |", "| `linger.s` |")) == GUIDE


def long_lines(text: str) -> list[int]:
    """Return the numbers of the lines of paragraphs and lists that are too long. Targets of links do not count, nor do
    tables and code."""
    lines = text.splitlines()
    tokens = MarkdownIt().enable("table").parse(text)
    prose = [
        token.map
        for before, token in pairwise(tokens)
        if token.type == "inline" and before.type == "paragraph_open" and token.map
    ]
    shown = {n: re.sub(r"\]\([^)]*\)", "]", lines[n]) for start, end in prose for n in range(start, end)}
    return [n + 1 for n, line in shown.items() if len(line) > LINE_CHARS_MAX]


@for_each("document", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_are_short(document: Path) -> None:
    assert long_lines(document.read_text(encoding="utf-8")) == []


def test_lines_that_count_as_long() -> None:
    long = "word " * 30
    link = f"[here](https://{'long.' * 30}org)"
    text = f"{long}\n\n- short\n  {long}\n\nshort\n\n    {long}\n\n```\n{long}\n```\n\n| {long} |\n|---|\n| {long} |\n\n{link}\n"
    assert long_lines(text) == [1, 4]


@for_each("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    headings = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"(?m)^#+ (.*)$", text)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (document.parent / target.split("#")[0]).exists(), target


@for_each("document", [*sorted((ROOT / "docs" / "internals").rglob("*.md")), ROOT / "CONTRIBUTING.md"])
def test_the_modules_that_are_named_exist(document: Path) -> None:
    """A module with a folder is named from the repository's top, from its package, or from the folder of the client or
    the log."""
    starts = (
        ".",
        "sparklog",
        "sparklog/client",
        "sparklog/log",
        "broker_daemon/sparklog_broker",
        "broker_daemon",
        "datasource",
    )
    for named in re.findall(r"`(\w+(?:/\w+)+\.py)`", document.read_text(encoding="utf-8")):
        assert any((ROOT / start / named).exists() for start in starts), named


def test_the_tests_that_are_named_exist() -> None:
    paths = list((ROOT / "tests").rglob("*.py"))
    known = {path.stem for path in paths}
    for path in paths:
        known.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    for document in sorted((ROOT / "docs" / "internals").rglob("*.md")):
        named = re.findall(r"`(?:[\w/]+\.py::)?(test_\w+)`", document.read_text(encoding="utf-8"))
        assert not [name for name in named if name not in known], document.name


_MEASURED = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "cluster.md")
"""The pages whose rows are the source of figures."""
_ROW_NAME = re.compile(r"\(`([a-z0-9-]+)`\)|\| `([a-z0-9-]+)` \|")
"""A row's name after a figure: in parentheses, or alone in a cell."""
_FIGURE = re.compile(r"([\d.,]*\d) (?:s|ms|MB|bytes|% of a core|records/s|rows/s)\b")


def measured_rows() -> dict[str, list[float]]:
    """Return by row the figures of sparklog: the median, then the medians of processor time, memory and bytes."""
    rows = {}
    for page in _MEASURED:
        for line in page.read_text(encoding="utf-8").splitlines():
            if name := re.match(r"\| [^|]*\(`([a-z0-9-]+)`\) \|", line):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                median = next(m[1] for cell in cells if (m := re.search(r"\*\*([\d.,]+)[ kM]*\*\*", cell)))
                costs = [cell.partition(" / ")[0] for cell in cells if " / " in cell]
                rows[name[1]] = [float(text.replace(",", "")) for text in (median, *costs) if text[0].isdigit()]
    return rows


def figures_beside_rows(text: str, rows: dict[str, list[float]]) -> list[tuple[str, str]]:
    """Return (row, figure) for each name of a row that follows a figure with a unit in the same line or sentence."""
    found = []
    paragraphs = re.split(r"\n\n|\n(?=[|-])|(?<=\.)\s", text)
    for paragraph in (" ".join(p.split()) for p in paragraphs):
        start = 0
        for name in _ROW_NAME.finditer(paragraph):
            figures = _FIGURE.findall(paragraph[start : name.start()])
            row, start = name[1] or name[2], name.end()
            if row in rows and figures:
                found.append((row, figures[-1]))
    return found


def is_rounded(figure: str, value: float) -> bool:
    text = figure.replace(",", "")
    return float(text) == round(value, len(text.partition(".")[2]))


def test_figures_beside_the_names_of_rows_are_those_of_the_rows() -> None:
    rows, number = measured_rows(), 0
    for document in (path for path in PAGES if path not in _MEASURED):
        for row, figure in figures_beside_rows(document.read_text(encoding="utf-8"), rows):
            assert any(is_rounded(figure, value) for value in rows[row]), f"{document.name}: {row} is {rows[row]}"
            number += 1
    assert number >= 10, "the pages name rows in another form"


def test_a_figure_that_is_not_the_rows_is_noticed() -> None:
    rows = {"memory-idle": [82.8, 0.2], "disk-lz4": [56.8]}
    text = "A broker has 77 MB (`memory-idle`), and 57\nbytes with lz4 (`disk-lz4`).\n\n| 5,000 clients | 83 MB | `memory-idle` |"
    found = figures_beside_rows(text, rows)
    assert found == [("memory-idle", "77"), ("disk-lz4", "57"), ("memory-idle", "83")]
    assert [any(is_rounded(figure, value) for value in rows[row]) for row, figure in found] == [False, True, True]


def test_every_command_in_the_documents_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "sparklog.cli", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in re.findall(r"(?m)(?:^ {4}|`)sparklog (\w[\w-]*)", README + GUIDE):
        assert re.search(rf"│ {command} ", shown), command


def test_the_site_is_built_without_a_broken_link_and_documents_every_public_name(tmp_path: Path) -> None:
    import sparklog

    execute([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], ROOT)
    reference = (tmp_path / "reference.html").read_text(encoding="utf-8")
    missing = [name for name in sparklog.__all__ if name != "__version__" and f".{name}" not in reference]
    assert not missing
    assert (tmp_path / "files" / "conf" / "broker.toml.html").exists()
