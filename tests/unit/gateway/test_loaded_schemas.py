"""The schemas that conversions use: loaded once, renewed, and forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from sparklog.errors import BrokerNotAvailableError, SchemaMismatchError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.limited_lines import LINE_EVERY_S
from sparklog.gateway.schemas import loaded_schemas
from sparklog.gateway.schemas.loaded_schemas import MISSING_S, NEWEST_S, VAIN_LOADS_MAX, LoadedSchemas
from sparklog.gateway.schemas.own_registry import OwnRegistry
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.gateway.schemas.state import StoredSchema, Version, schema_record, version_record
from sparklog.kafka.schemas.schema_types import SchemaType
from sparklog.kafka.values.schemas import SchemasNotLoadedError


class World:
    """A registry's log, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log = RegistryLog()
        self.schemas = LoadedSchemas(OwnRegistry(self.log), lambda: self.now_s)
        self.added: list[Any] = []
        self.reads = 0
        self.is_dead = False
        self.answers: asyncio.Event | None = None
        """Set when the registry answers what it has read before; None: it answers at once."""

    async def refresh(self, broker: object) -> Any:
        self.reads += 1
        if self.is_dead:
            raise BrokerNotAvailableError("no answer")
        if self.answers is not None:
            state = self.log.state
            await self.answers.wait()
            return state
        if self.added:
            self.log.state = self.log.state.replay(self.added, self.log.state.offset + len(self.added))
            self.added = []
        return self.log.state

    def add(self, schema_id: int, subject: str, text: str) -> None:
        stored = StoredSchema(SchemaType.AVRO, text)
        self.added += [schema_record(schema_id, stored), version_record(subject, schema_id, Version(schema_id))]

    async def load(self, *ids: int, subject: str = "") -> None:
        missing = SchemasNotLoadedError(ids, [subject] if subject else [])
        await self.schemas.load(cast(BrokerConnection, None), missing)


def run(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> None:
        world = World()
        monkeypatch.setattr(world.log, "refresh", world.refresh)
        try:
            await scenario(world)
        finally:
            world.log.close()

    asyncio.run(asyncio.wait_for(begin(), 60))


def test_an_id_is_loaded_once_and_a_missing_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(SchemasNotLoadedError):
            world.schemas.schema_of(1)
        await world.load(1)
        assert world.schemas.schema_of(1) is None
        world.now_s += MISSING_S
        with pytest.raises(SchemasNotLoadedError):
            world.schemas.schema_of(1)
        world.add(1, "t-value", '"int"')
        await world.load(1)
        world.now_s += 1_000_000
        assert world.schemas.schema_of(1) is not None

    run(scenario, monkeypatch)


def test_the_newest_schema_is_renewed_with_age_and_after_a_new_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.load(subject="t-value")
        assert world.schemas.newest("t-value") is None
        world.add(1, "t-value", '"int"')
        await world.load(1)
        with pytest.raises(SchemasNotLoadedError):
            world.schemas.newest("t-value")
        await world.load(subject="t-value")
        newest = world.schemas.newest("t-value")
        assert newest is not None
        assert newest[0] == 1
        world.now_s += 2 * NEWEST_S
        with pytest.raises(SchemasNotLoadedError) as e:
            world.schemas.newest("t-value")
        assert e.value.subjects == {"t-value"}
        world.add(2, "t-value", '"long"')
        assert await world.schemas.has_changed(cast(BrokerConnection, None), "t-value")
        assert not await world.schemas.has_changed(cast(BrokerConnection, None), "t-value")

    run(scenario, monkeypatch)


def test_dropped_fields_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            world.schemas.note_dropped("t", {"a.b": 3})
        assert world.schemas.dropped_records("t") == {"a.b": 6}
        assert world.schemas.dropped_records("u") == {}

    run(scenario, monkeypatch)


def test_a_dead_registry_delays_only_schemas_that_are_not_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        await world.load(1, subject="t-value")
        world.is_dead = True
        world.now_s += NEWEST_S
        await world.load(subject="t-value")
        newest = world.schemas.newest("t-value")
        assert newest is not None
        assert newest[0] == 1
        for lines in (1, 2):
            for ids, subject in [((2,), ""), ((), "u-value")]:
                with pytest.raises(BrokerNotAvailableError):
                    await world.load(*ids, subject=subject)
            assert caplog.text.count("schemas cannot be read") == lines
            world.now_s += LINE_EVERY_S

    run(scenario, monkeypatch)


def test_a_registry_that_does_not_answer_in_time_delays_only_schemas_that_are_not_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded_schemas, "RENEWAL_S", 0.0)

    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        world.add(1, "u-value", '"int"')
        await world.load(1, subject="t-value")
        await world.load(subject="u-value")
        world.answers = asyncio.Event()
        for _ in range(3):
            world.now_s += NEWEST_S
            for subject in ("t-value", "u-value"):
                await world.load(subject=subject)
                newest = world.schemas.newest(subject)
                assert newest is not None and newest[0] == 1
        assert world.reads == 4, "a subject is looked up once at a time"
        new_id = asyncio.create_task(world.load(2))
        await asyncio.wait([new_id], timeout=0)
        assert not new_id.done()
        world.answers.set()
        await new_id

    run(scenario, monkeypatch)


def test_a_late_answer_counts_unless_a_newer_schema_was_loaded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_schemas, "RENEWAL_S", 0.0)

    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        await world.load(1, subject="t-value")
        for has_newer in (False, True):
            world.add(2 + has_newer, "t-value", '"long"' if has_newer else '"double"')
            if not has_newer:
                await world.refresh(None)
            world.now_s += NEWEST_S
            answers, before = asyncio.Event(), asyncio.all_tasks()
            world.answers = answers
            await world.load(subject="t-value")
            (renewal,) = asyncio.all_tasks() - before
            if has_newer:
                world.answers = None
                await world.load(3)
                with pytest.raises(SchemasNotLoadedError):
                    world.schemas.newest("t-value")
                await world.load(subject="t-value")
            answers.set()
            await renewal
            newest = world.schemas.newest("t-value")
            assert newest is not None and newest[0] == 2 + has_newer

    run(scenario, monkeypatch)


def test_a_schema_that_cannot_be_read_has_its_reason_and_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.add(1, "t-value", '{"type": "record"}')
        await world.load(1, subject="t-value")
        for _ in range(2):
            with pytest.raises(SchemaMismatchError, match="a schema 1 that sparklog cannot read"):
                world.schemas.schema_of(1)
            with pytest.raises(SchemaMismatchError, match="a schema 1 that sparklog cannot read"):
                world.schemas.newest("t-value")
            world.now_s += NEWEST_S
            with pytest.raises(SchemasNotLoadedError):
                world.schemas.schema_of(1)
            with pytest.raises(SchemasNotLoadedError):
                world.schemas.newest("t-value")
            await world.load(1, subject="t-value")
        world.add(2, "t-value", '"int"')
        await world.load(subject="t-value")
        newest = world.schemas.newest("t-value")
        assert newest is not None and newest[0] == 2

    run(scenario, monkeypatch)


def test_fields_are_dropped_by_a_newest_schema_of_after_the_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        await world.load(1, subject="t-value")
        world.now_s += 0.001
        schemas = world.schemas.of_request()
        assert schemas.newest("t-value") == world.schemas.newest("t-value") and schemas.schema_of(1) is not None
        with pytest.raises(SchemasNotLoadedError) as e:
            schemas.note_dropped("t", {"a": 1})
        assert world.schemas.dropped_records("t") == {}
        await world.schemas.load(cast(BrokerConnection, None), e.value)
        schemas.note_dropped("t", {"a": 1})
        assert world.schemas.dropped_records("t") == {"a": 1}

    run(scenario, monkeypatch)


def test_an_answer_holds_for_a_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        schemas = world.schemas.of_request()
        for missing in (SchemasNotLoadedError([1, 2], ["t-value"]), SchemasNotLoadedError(guids=[UUID(int=5)])):
            await schemas.load(cast(BrokerConnection, None), missing)
        newest = schemas.newest("t-value")
        world.now_s += 1_000
        assert schemas.schema_of(1) is not None and schemas.schema_of(2) is None and schemas.id_of(UUID(int=5)) is None
        assert newest is not None and schemas.newest("t-value") == newest

    run(scenario, monkeypatch)


def test_a_request_with_ever_more_ids_that_do_not_exist_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.add(1, "t-value", '"int"')
        schemas = world.schemas.of_request()
        await schemas.load(cast(BrokerConnection, None), SchemasNotLoadedError([1]))
        for schema_id in range(10, 10 + VAIN_LOADS_MAX):
            with pytest.raises(SchemasNotLoadedError) as e:
                schemas.schema_of(schema_id)
            await schemas.load(cast(BrokerConnection, None), e.value)
            assert schemas.schema_of(schema_id) is None
        for _ in range(2):
            with pytest.raises(SchemaMismatchError, match="too many ids that the registry does not have"):
                schemas.schema_of(99)
        assert schemas.id_of(UUID(int=99)) is None and schemas.schema_of(1) is not None

    run(scenario, monkeypatch)
