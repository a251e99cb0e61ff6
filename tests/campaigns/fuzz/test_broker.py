"""A broker that gets hostile requests of every API."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sparklog.errors import SparklogError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_request
from tests.campaigns.fuzz.broker_target import NAMES, TOPICS, run_requests
from tests.campaigns.fuzz.requests import make_request
from tests.campaigns.fuzz.torture_share import first_seed, seconds_per_target

SEEDS = 300


def test_every_api_gets_requests_that_can_be_read() -> None:
    read: set[int] = set()
    for seed in range(2500):
        request = make_request(seed, NAMES, TOPICS)
        assert request == make_request(seed, NAMES, TOPICS)
        header_bytes = int.from_bytes(request.data[12:16], "little")
        try:
            version = int.from_bytes(request.data[6:8], "little")
            decode_request(request.api, version, request.data[16 : 16 + header_bytes])
        except SparklogError:
            continue  # that is what they are for
        read.add(request.api)
    assert read == set(APIS), set(Api) - read


def test_hostile_requests(tmp_path: Path) -> None:
    outcome = run_requests(range(SEEDS), tmp_path)
    assert not outcome.findings, str(outcome)


@pytest.mark.torture
def test_many_hostile_requests(tmp_path: Path) -> None:
    outcome = run_requests(itertools.count(first_seed()), tmp_path, seconds=seconds_per_target())
    print("broker", outcome)
    assert not outcome.findings, str(outcome)
