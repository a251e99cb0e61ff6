"""Test suites of other projects, run against the gateway."""
