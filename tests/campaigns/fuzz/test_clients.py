"""Admin, Producer, Consumer and `read_table` against a server that lies."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sparklog.protocol.apis import Api
from tests.campaigns.fuzz.client_campaign import run_clients, run_spark
from tests.campaigns.fuzz.hostile_server import ASKED, LIES, make_plan
from tests.campaigns.fuzz.torture_share import first_seed, seconds_per_target

QUICK = [s for s in range(60) if make_plan(s).lie not in ("silence", "trickle")][:10]
"""Those whose lies take no time of their own."""


def test_clients_of_a_hostile_server(tmp_path: Path) -> None:
    outcome = run_clients(QUICK, tmp_path)
    assert not outcome.findings, str(outcome)
    assert outcome.refused > len(QUICK) // 3, f"the server was hardly asked: {outcome}"


OF_SPARK = [
    s
    for s in range(300)
    if make_plan(s).lie not in ("silence", "trickle")
    and make_plan(s).api in (Api.METADATA, Api.FETCH, Api.LIST_OFFSETS, Api.LOCATE_SEGMENTS, Api.SNAPSHOT_OFFSETS)
][:8]


def test_spark_reads_from_a_hostile_server(tmp_path: Path) -> None:
    """The readers in a process of their own, without a JVM: bounded memory and time, typed errors."""
    outcome = run_spark(OF_SPARK, tmp_path)
    assert not outcome.findings, str(outcome)
    assert outcome.refused > len(OF_SPARK) // 2, f"the server was hardly asked: {outcome}"


def test_every_lie_is_sent_to_every_api() -> None:
    plans = [make_plan(seed) for seed in range(20_000)]
    assert {(p.api, p.lie) for p in plans} == set(itertools.product(ASKED, LIES))


@pytest.mark.torture
def test_clients_of_many_hostile_servers(tmp_path: Path) -> None:
    outcome = run_clients(itertools.count(first_seed()), tmp_path, seconds=seconds_per_target())
    print("clients", outcome)
    assert not outcome.findings, str(outcome)


@pytest.mark.torture
def test_spark_reads_from_many_hostile_servers(tmp_path: Path) -> None:
    outcome = run_spark(itertools.count(first_seed()), tmp_path, seconds=seconds_per_target())
    print("spark", outcome)
    assert not outcome.findings, str(outcome)
