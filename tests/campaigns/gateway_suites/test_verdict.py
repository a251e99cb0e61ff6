"""The verdict on suites of other projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.gateway_suites import java
from tests.campaigns.gateway_suites.__main__ import SUITES
from tests.campaigns.gateway_suites.go_suites import results
from tests.campaigns.gateway_suites.librdkafka import names_of
from tests.campaigns.gateway_suites.mending import MendError, mend
from tests.campaigns.gateway_suites.python_suites import results_of
from tests.campaigns.gateway_suites.verdict import judge

OUTPUT = "=== RUN   A\n--- PASS: A (0.1s)\n--- FAIL: B (0.2s)\n    --- FAIL: B/inner (0.2s)\n    c_test.go:7: too old\n--- SKIP: C (0s)\n"
RUNNER = """
    _TEST(0001_multiobj, 0),
    _TEST(0004_conf, TEST_F_LOCAL),
    _TEST(0011_produce_batch,
          0,
          /* a comment */
          _THRES(.ucpu = 5.0)),
    _TEST(0030_mock, 0, TEST_BRKVER(2, 4, 0, 0)),
    _TEST(0047_known, TEST_F_KNOWN_ISSUE),
    _TEST(0051_elsewhere, TEST_F_KNOWN_ISSUE_WIN32),
    _TEST(8000_idle, TEST_F_MANUAL),
    _TEST(0098_consumer_txn, 0, TEST_BRKVER(0, 11, 0, 0)),
"""


def test_only_listed_tests_may_fail_and_must() -> None:
    assert judge({"A"}, {"B"}, {"B"}).is_good
    assert judge({"A"}, {"B"}, set()).unexpected == {"B"}
    assert judge({"A"}, {"B"}, {"A", "B"}).outdated == {"A"}
    assert not judge(set(), set(), set()).is_good, "a suite that did not run is no success"


def test_results_are_read_with_the_parts_of_tests() -> None:
    assert results(OUTPUT) == ({"A"}, {"B", "B/inner"}, {"C": "too old"})
    assert results(OUTPUT + "=== RUN   D\nSIGQUIT: quit\n") == ({"A"}, {"B", "B/inner", "D"}, {"C": "too old"}), (
        "D has not ended"
    )


def test_results_of_pytest_are_read() -> None:
    output = (
        "tests/test_a.py::test_a PASSED                                  [ 25%]\n"
        "tests/test_a.py::B::test_b[x y] SKIPPED (too old (1.0))         [ 50%]\n"
        "tests/test_a.py::test_c FAILED                                  [ 75%]\n"
        "tests/test_a.py::test_d PASSED                                  [100%]\n"
        "tests/test_a.py::test_d ERROR                                   [100%]\n"
    )
    names = [f"tests/test_a.py::{name}" for name in ("test_a", "B::test_b[x y]", "test_c", "test_d")]
    assert results_of(output) == ({names[0]}, {names[2], names[3]}, {names[1]: "too old (1.0)"})


def test_results_of_the_java_runner_are_read() -> None:
    output = (
        "TEST A.a.groupProtocol=classic\nRUN A.a.groupProtocol=classic\nPASSED A.a.groupProtocol=classic\n"
        "TEST A.b\nTEST A.c\nRUN A.c\nFAILED A.c\norg.AssertionError: FAILED A.a\n\tat A.c(A.java:1)\n"
        "SKIPPED A.d is too old\nTEST A.e\nRUN A.e\n"
    )
    names = {"A.a", "A.a.groupProtocol=classic", "A.b", "A.c", "A.e"}
    assert java.results_of(output) == (names, {"A.a.groupProtocol=classic"}, {"A.c", "A.e"}, {"A.d": "is too old"}), (
        "A.e has not ended"
    )


def test_properties_of_kafkas_brokers_become_settings() -> None:
    properties = {
        "offsets.topic.replication.factor": "2",
        "num.partitions": "4",
        "auto.create.topics.enable": "false",
        "min.insync.replicas": "2",
        "node.id": "0",
        "broker.rack": "a",
    }
    settings = {
        "num.partitions": 4,
        "auto.create.topics.enable": False,
        "topic.min.insync.replicas": 2,
        "broker.rack": "a",
    }
    assert java.settings_of(properties, 2) == settings
    assert java.settings_of(properties, 3) == settings | {"default.replication.factor": 2}


def test_each_refused_test_has_a_reason() -> None:
    for suite in SUITES.values():
        assert all(reason.strip() for reason in suite.listed().get("refused", {}).values())


def test_tests_without_a_broker_are_excluded() -> None:
    assert names_of(RUNNER) == ["0001_multiobj", "0011_produce_batch", "0051_elsewhere", "0098_consumer_txn"]


def test_a_line_of_the_client_is_replaced_or_named(tmp_path: Path) -> None:
    source = tmp_path / "a.go"
    entry = {"file": "a.go", "before": "x = f(s)", "after": "x = f(s[:0])"}
    source.write_text("{\n\tx = f(s)\n\ty = x = f(s)\n}\n", encoding="utf-8")
    mend(tmp_path, [entry], "list.toml")
    assert source.read_text(encoding="utf-8") == "{\n\tx = f(s[:0])\n\ty = x = f(s)\n}\n"
    with pytest.raises(MendError, match=r"a\.go .*'x = f\(s\)' 0 times.*delete its entry"):
        mend(tmp_path, [entry], "list.toml")
    source.write_text("x = f(s)\nx = f(s)\n", encoding="utf-8")
    with pytest.raises(MendError, match="2 times"):
        mend(tmp_path, [entry], "list.toml")
    with pytest.raises(MendError, match=r"b\.go"):
        mend(tmp_path, [entry | {"file": "b.go"}], "list.toml")


def test_each_replaced_line_has_a_reason() -> None:
    for suite in SUITES.values():
        for entry in suite.listed().get("mended", ()):
            assert entry["reason"].strip() and entry["after"] != entry["before"]
