"""Security records in the broker: stored when a change returns, and announced to all watchers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sparklog_broker.config import make_config

from sparklog.errors import InvalidConfigError
from sparklog.security.records import RecordId, RecordKind
from tests.support.brokers import started


def test_watchers_see_changes_of_their_kind(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await started(make_config({"data.dir": str(tmp_path)}))
        records = broker.security_records
        await records.change({RecordId("users", "old"): b"0"})
        users: list[object] = []
        acls: list[object] = []
        broken: list[object] = []

        def fails(changes: object) -> None:
            broken.append(changes)
            raise ValueError("a defect of one watcher")

        records.watch(RecordKind.USERS, fails)
        records.watch(RecordKind.USERS, users.append)
        records.watch(RecordKind.ACLS, acls.append)
        await records.change({RecordId("users", "a"): b"1", RecordId("acls", "x"): b"2"})
        await records.change({RecordId("users", "a"): b"1", RecordId("users", "old"): None})
        with pytest.raises(InvalidConfigError):
            await records.change({RecordId("users", "b"): b"1", RecordId("nothing", "x"): b"2"})
        assert users == broken == [{"old": b"0"}, {"a": b"1"}, {"old": None}]
        assert acls == [{"x": b"2"}]
        assert records.of_kind(RecordKind.USERS) == {"a": b"1"}
        assert await broker.close()

    asyncio.run(main())
