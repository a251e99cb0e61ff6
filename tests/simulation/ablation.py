"""Safeguards of the product switched off one by one: a simulation that does not notice the loss proves nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from sparklog_broker.coordinators.transaction_shard import TransactionShard

from sparklog.replication.transactions import Effects

MODULES = (
    "sparklog.log.producers.states",
    "sparklog.replication.transactions.model",
    "sparklog.replication.group_membership",
    "sparklog.client.producer.sequences",
)
"""Modules with a dataclass `Safeguards`."""

CLUSTER_MODULES = (
    "sparklog.replication.replica.model",
    "sparklog.replication.controller.model",
)
"""Modules with rules for several brokers only."""

ANSWERS_FIRST = "sparklog_broker.coordinators.transaction_shard:records_before_answers"
"""Not a field: the transaction coordinator answers, and writes markers, before its records are stored."""


def safeguards(modules: Sequence[str] = MODULES) -> list[str]:
    """Return all safeguards as `module:field`."""
    return [
        f"{module}:{field.name}"
        for module in modules
        for field in dataclasses.fields(importlib.import_module(module).Safeguards)
    ]


@contextlib.contextmanager
def without(safeguard: str) -> Iterator[None]:
    """Switch the field off in every instance: default arguments, and instances made meanwhile."""
    if safeguard == ANSWERS_FIRST:
        with _answers_first():
            yield
        return
    module, _, name = safeguard.partition(":")
    guards = importlib.import_module(module).Safeguards
    index = [field.name for field in dataclasses.fields(guards)].index(name)
    before = guards.__init__.__defaults__
    made = [found for found in gc.get_objects() if isinstance(found, guards) and getattr(found, name)]
    guards.__init__.__defaults__ = (*before[:index], False, *before[index + 1 :])
    for found in made:
        object.__setattr__(found, name, False)
    try:
        yield
    finally:
        guards.__init__.__defaults__ = before
        for found in made:
            object.__setattr__(found, name, True)


@contextlib.contextmanager
def _answers_first() -> Iterator[None]:
    apply = TransactionShard._apply

    def act_and_apply(shard: TransactionShard, effects: Effects) -> None:
        shard._act(effects)
        apply(shard, replace(effects, actions=[]))

    TransactionShard._apply = act_and_apply  # type: ignore[assignment]
    try:
        yield
    finally:
        TransactionShard._apply = apply  # type: ignore[method-assign]
