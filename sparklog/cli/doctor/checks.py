"""All checks. Findings of equal severity are reported in the order of the checks."""

from __future__ import annotations

from sparklog.cli.doctor import check_cluster, check_directory, check_machine, check_readers
from sparklog.cli.doctor.findings import Check

CHECKS: tuple[Check, ...] = (
    *check_cluster.CHECKS,
    *check_readers.CHECKS,
    *check_directory.CHECKS,
    *check_machine.CHECKS,
)
