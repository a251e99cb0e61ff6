"""A plan computes what a load needs, from the measured figures of the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.descriptors import share_out

from sparklog.cli.doctor.plan import MEASURED, STORED_1K_BYTES, Load, Machine, plan, shown
from sparklog.cli.doctor.plan_command import smallest_limit
from tests.support.cli import run_here

BENCHMARKS = Path(__file__).resolve().parents[4] / "docs" / "benchmarks.md"
MULTIPLES = {"k": 1e3, "M": 1e6}


def benchmark(row: str) -> list[str]:
    (line,) = [text for text in BENCHMARKS.read_text(encoding="utf-8").splitlines() if f"(`{row}`)" in text]
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(text: str) -> float:
    digits, _, multiple = text.replace(",", "").partition(" ")
    return float(digits) * MULTIPLES.get(multiple, 1)


def test_the_measured_figures_are_those_of_the_documents() -> None:
    for row, value in MEASURED.items():
        cells = benchmark(row)
        median = re.search(r"\*\*(.+?)\*\*", cells[3])
        assert median is not None
        of_memory = row in {"partitions-1000", "produce-100b-acksall", "growth-connections"}
        assert value == number(cells[9].split(" / ")[0] if of_memory else median[1]), row
    for compression, size in STORED_1K_BYTES.items():
        row = "produce-1k-acksall" if compression == "none" else f"produce-1k-{compression}"
        assert size == number(benchmark(row)[11].split(" / ")[0]), row


def amounts(load: Load) -> dict[str, int]:
    return {need.name: need.amount for need in plan(load, Machine(), smallest_limit)}


def test_a_plan_of_a_measured_load() -> None:
    load = Load(2_000, 496, 7 * 86_400_000, replicas=3, brokers=3, readers=12, groups=2)
    found = amounts(load)
    assert found["partitions of all topics"] == 12
    assert found["network in"] == 2_000 * 500
    assert found["network out"] == -(-2_000 * 500 * 4 // 3), (
        "two copies for followers, two for groups, of three brokers"
    )
    kept, open_segments, unlinked = 604_800 * 1_000_000, 12 * 2**30, 60 * 1_000_000
    assert found["disk"] == (kept + open_segments + unlinked) / 0.8
    assert amounts(load._replace(partitions=100))["partitions of all topics"] == 100
    assert amounts(load._replace(rows_per_s=10_000_000))["partitions of all topics"] == 13
    at_once = amounts(load._replace(partitions=1_024))["descriptors"]
    assert amounts(load._replace(partitions=20_000))["descriptors"] == at_once, (
        "a broker closes and opens segment files"
    )


def test_a_machine_with_too_little_is_named() -> None:
    needs = {n.name: n for n in plan(Load(1_000, 100, 86_400_000), Machine(2**20, 2**40, 10, 64), smallest_limit)}
    assert [name for name, need in needs.items() if not need.is_met] == ["disk", "descriptors"]


@given(
    load=st.builds(
        Load,
        st.integers(1, 10**7),
        st.integers(1, 10**6),
        st.integers(1, 10**10),
        st.integers(1, 5),
        st.integers(5, 50),
        st.just(0),
        st.integers(1, 1_000),
        st.integers(0, 20),
        st.integers(1, 10_000),
        compression=st.sampled_from(sorted(STORED_1K_BYTES)),
    ),
    field=st.sampled_from(["rows_per_s", "row_bytes", "retention_ms", "replicas", "readers", "groups", "connections"]),
)
def test_more_load_never_needs_less(load: Load, field: str) -> None:
    before, after = amounts(load), amounts(load._replace(**{field: getattr(load, field) + 1}))
    for name, amount in before.items():
        # more partitions have more open segments that are less full
        assert after[name] >= amount * (0.99 if name == "disk" else 1), name


@given(files=st.integers(1, 100_000), connections=st.integers(1, 100_000))
def test_the_smallest_limit_gives_a_broker_its_files_and_connections(files: int, connections: int) -> None:
    limit = smallest_limit(files, connections)
    enough, less = share_out(limit, files, connections), share_out(limit - 1, files, connections)
    assert (enough.files, enough.connections) == (files, connections)
    assert less.files < files or less.connections < connections


def test_amounts_for_people() -> None:
    assert [shown(*a) for a in ((65_536, ""), (1_234, "bytes"), (5_570_000, "bytes/s"), (4 * 10**12, "bytes"))] == [
        "65,536",
        "1.23 kB",
        "5.57 MB/s",
        "4 TB",
    ]


def test_the_command(tmp_path: Path) -> None:
    words = ("doctor", "--plan", "--rows", "50k/s", "--row-bytes", "200B", "--retention", "1h")
    found = json.loads(run_here(*words, "--json", "--replicas", 3).stdout)
    assert found["load"] | {"rows_per_s": 50_000, "retention_ms": 3_600_000, "brokers": 3} == found["load"]
    assert "partitions of all topics" in run_here(*words).stdout
    far = run_here(*words[:-1], "100000w", "--data-dir", tmp_path / "new")
    assert (far.returncode, "TOO LITTLE" in far.stdout) == (1, True)
    assert "a number of rows" in run_here("doctor", "--plan", "--rows", "-5", "--row-bytes", "1").stderr
    for wrong in (
        words[:4],
        (*words, "--compression", "gzip"),
        (*words, "--replicas", "3", "--brokers", "2"),
        ("doctor", "--rows", "5"),
    ):
        assert run_here(*wrong).returncode == 2, wrong
