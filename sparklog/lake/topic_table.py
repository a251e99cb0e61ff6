"""A topic's table: opened where it is there, created at a topic's first round or by `lake enable`."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from sparklog.errors import InvalidConfigError, LakeUnavailableError
from sparklog.lake.columns import check_columns, check_partition_by
from sparklog.lake.delta_commit import DeltaCommitter, create_table
from sparklog.lake.delta_snapshot import DeltaSnapshot, table_dropped_error
from sparklog.lake.location import locations_above, normal_location
from sparklog.lake.settings import LakeSettings


class DeltaTables:
    """The functions that open, create and change tables. Tests pass a model of them."""

    open = staticmethod(DeltaSnapshot.open)
    create = staticmethod(create_table)
    committer = DeltaCommitter


def open_or_create(
    topic: str, topic_id: str, settings: LakeSettings, schema: pa.Schema, tables: type[DeltaTables] = DeltaTables
) -> DeltaSnapshot:
    """Return the topic's table; create it if the topic never had one. The result: the newest version of the table at
    the location, whose topic and mode are not checked. Raises LakePausedError; InvalidConfigError: Delta cannot hold a
    column, a column cannot partition the table, or the location is inside another table; CommitConflictError;
    LakeUnavailableError."""
    location = normal_location(settings.location)
    table = tables.open(location)
    if table is not None:
        return table
    if settings.table_id:
        raise table_dropped_error(location, settings.table_id)
    check_columns(schema)
    check_partition_by(settings.table_partitions, schema)
    _check_alone(location, tables)
    return tables.create(
        location,
        schema,
        topic=topic,
        topic_id=topic_id,
        mode=settings.mode,
        partition_by=settings.table_partitions,
    )


def _check_alone(location: str, tables: type[DeltaTables]) -> None:
    """Raise InvalidConfigError if the location is inside another Delta table, whose VACUUM would delete its files.

    A location above that cannot be reached, for example without the permission to list it, is no reason to refuse.
    """
    for above in locations_above(location):
        with contextlib.suppress(LakeUnavailableError):
            if tables.open(above) is not None:
                raise InvalidConfigError(
                    f"lake.location = {location!r} is inside the Delta table at {above}, and VACUUM of that table would "
                    "delete the topic's files: choose a location outside of other tables"
                )
