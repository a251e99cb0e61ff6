"""The verdict on suites of other projects."""

from __future__ import annotations

from tests.gateway_suites.__main__ import judge

OUTPUT = "=== RUN   A\n--- PASS: A (0.1s)\n--- FAIL: B (0.2s)\n    --- FAIL: B/inner (0.2s)\n--- SKIP: C (0s)\n"


def test_only_listed_tests_may_fail_and_must() -> None:
    assert judge(OUTPUT, {"B"}).is_good
    assert judge(OUTPUT, set()).unexpected == {"B"}
    assert judge(OUTPUT, {"A", "B"}).outdated == {"A"}
    assert not judge("", set()).is_good, "a suite that did not run is no success"
