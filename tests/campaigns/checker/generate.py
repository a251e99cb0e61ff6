"""Tasks of clients: seeded, endless, the same for a model and for real processes.

Every stream has a random generator of its own, so that one client more or less changes nothing for the others.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

VALUE_BITS = 32


def unique_values(client: int) -> Iterator[int]:
    """Values that no other client number uses. `client` counts lives: a restarted client is another one."""
    return itertools.count((client + 1) << VALUE_BITS)


@dataclass(frozen=True)
class Mix:
    """Sizes and frequencies."""

    records_max: int = 8  # per call
    calls_max: int = 4  # per transaction
    abort_share: float = 0.2
    seek_share: float = 0.05  # of an assigned consumer's polls, back to the beginning


@dataclass(frozen=True)
class SendIntent:
    """One call: so many records to one partition."""

    partition: str
    records: int


@dataclass(frozen=True)
class TransactionIntent:
    """The calls of one transaction, and whether it is committed at their end."""

    sends: tuple[SendIntent, ...]
    commit: bool


@dataclass(frozen=True)
class PipelineIntent:
    """Take up to so many records, send one output for each to one partition, commit both or neither."""

    records_max: int
    partition: str
    commit: bool


@dataclass(frozen=True)
class PollIntent:
    """Take up to so many records, after going back to the beginning if `seek`."""

    records_max: int
    seek: bool


def _stream(seed: int, client: int) -> random.Random:
    return random.Random(f"{seed}/{client}")


def sends(seed: int, client: int, partitions: Sequence[str], mix: Mix = Mix()) -> Iterator[SendIntent]:
    rng = _stream(seed, client)
    while True:
        yield SendIntent(rng.choice(partitions), rng.randint(1, mix.records_max))


def transactions(
    seed: int,
    client: int,
    partitions: Sequence[str],
    mix: Mix = Mix(),
) -> Iterator[TransactionIntent]:
    rng = _stream(seed, client)
    while True:
        calls = [
            SendIntent(rng.choice(partitions), rng.randint(1, mix.records_max))
            for _ in range(rng.randint(1, mix.calls_max))
        ]
        yield TransactionIntent(tuple(calls), rng.random() >= mix.abort_share)


def pipelines(
    seed: int,
    client: int,
    outputs: Sequence[str],
    mix: Mix = Mix(),
) -> Iterator[PipelineIntent]:
    rng = _stream(seed, client)
    while True:
        yield PipelineIntent(rng.randint(1, mix.records_max), rng.choice(outputs), rng.random() >= mix.abort_share)


def polls(seed: int, client: int, mix: Mix = Mix()) -> Iterator[PollIntent]:
    rng = _stream(seed, client)
    while True:
        yield PollIntent(rng.randint(1, mix.records_max), rng.random() < mix.seek_share)
