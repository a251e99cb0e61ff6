"""Facts from a metrics page and a configuration, and the output of findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.cli.doctor.facts import ClockFacts, ConfigFacts, Facts, PageFacts
from sparklog.cli.doctor.findings import CheckFinding, Finding, Severity
from sparklog.cli.doctor.process_facts import clock_facts, look_at_config, page_facts
from sparklog.cli.doctor.report import as_json, as_text
from sparklog.cli.top.page import Series
from sparklog.errors import InvalidRequestError

FOUND = [
    CheckFinding("a", Finding(Severity.error, "bad\x1b[2J", "because", "mend it", "sparklog topic list")),
    CheckFinding("b", Finding(Severity.note, "odd", "why not", "nothing")),
]


@pytest.mark.parametrize(
    ("told_s", "expected"),
    [(10.0, ClockFacts(0)), (10.4, ClockFacts(0)), (10.6, ClockFacts(100)), (9.9, ClockFacts(-100)), (0.0, None)],
)
def test_the_clocks_error_excludes_the_time_of_the_answer(told_s: float, expected: ClockFacts | None) -> None:
    assert clock_facts({"sparklog_time_seconds": [({}, told_s)]}, 10_000, 10_500) == expected


def test_a_page() -> None:
    series: Series = {
        "sparklog_ready": [({}, 1.0)],
        "process_open_fds": [({}, 5.0)],
        "process_max_fds": [({}, 50.0)],
        "sparklog_log_directory_failed": [({"directory": "/a"}, 0.0), ({"directory": "/b"}, 1.0)],
        "sparklog_fsync_failures_total": [({"directory": "/a"}, 1.0), ({"directory": "/b"}, 2.0)],
    }
    found = page_facts("u", "h", series)
    assert found == PageFacts("u", "h", open_files=5, open_files_max=50, failed_directories=("/b",), fsync_failures=3)
    with pytest.raises(InvalidRequestError, match="not the metrics page"):
        page_facts("u", "h", {"go_threads": [({}, 1.0)]})


def test_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'listen = "0.0.0.0:9292"\nmetrics.listen = "[::1]:9293"\ndata.dir = "/var/lib/x"\nlog.dirs = "/a, /b"\n'
        'remote.log.storage.options = \'{"secret": "s"}\'\n[topic]\nmax.message.bytes = 2048\n'
    )
    path.chmod(0o644)
    facts, data_dir, log_dirs = look_at_config(path)
    assert (facts.listen_host, facts.metrics_host, facts.max_message_bytes) == ("0.0.0.0", "::1", 2048)
    assert facts.readable_secrets
    assert (data_dir, log_dirs) == (Path("/var/lib/x"), (Path("/a"), Path("/b")))
    path.chmod(0o640)
    assert not look_at_config(path)[0].readable_secrets
    path.write_text("listn = 1")
    facts, data_dir, _ = look_at_config(path)
    assert "did you mean" in facts.problem
    assert data_dir is None
    assert "cannot be read" in look_at_config(tmp_path / "none.toml")[0].problem


def test_text() -> None:
    lines = list(as_text(FOUND, Facts(config=ConfigFacts("c.toml")), 7, colours=False))
    assert lines == [
        "error  bad\ufffd[2J  [a]",
        "  why:  because",
        "  do:   mend it",
        "        $ sparklog topic list",
        "",
        "note  odd  [b]",
        "  why:  why not",
        "  do:   nothing",
        "",
        "7 checks of c.toml: 1 error, 1 note",
    ]
    assert list(as_text([], Facts(config=ConfigFacts("c.toml")), 7, colours=True)) == [
        "7 checks of c.toml: nothing is wrong"
    ]


def test_json() -> None:
    found = as_json(FOUND, Facts(), ["a", "b"])
    assert (found["status"], found["checks"]) == (2, ["a", "b"])
    assert found["findings"][1] == {
        "check": "b", "severity": "note", "what": "odd", "why": "why not", "do": "nothing", "command": "",
    }  # fmt: skip
