"""Tiering against a list, over clean stops, power cuts at any call to disk or store, a store that fails, and retention:
every record that was on the disk is there once, from the log start on, and nothing else stays in the store."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.property.tiering_machine import TieringModel

TieringModel.TestCase.settings = settings(
    settings(), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTieringModel = TieringModel.TestCase
