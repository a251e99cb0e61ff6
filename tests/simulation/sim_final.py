"""The final reading of a life, after healing and without clients."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import OffsetOutOfRangeError, error_from_code
from sparklog.format.batch import BatchHeader, iterate_batches
from sparklog.protocol import group_messages as g
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse
from sparklog.testing._sim_client import SimClient
from sparklog.testing._sim_reader import FETCH_BYTES, Row, SimReader
from sparklog.types import READ_UNCOMMITTED
from tests.campaigns.checker.history import Kind, Outcome, Recorder
from tests.simulation.sim_roles import ends, partition_of, polls_of


async def read_committed(
    client: SimClient, names: Sequence[str], history: Recorder | None = None
) -> tuple[dict[str, list[Row]], dict[str, int]]:
    """Return everything up to the high watermarks, and these; it waits for every earlier transaction. `history`:
    records the reading.
    """
    until = await ends(client, names)
    reader = SimReader(client, committed=True)
    reader.assign({partition_of(p): 0 for p in names})
    rows: dict[str, list[Row]] = {name: [] for name in names}
    if history is not None:
        history.end(history.begin(Kind.ASSIGN, offsets=dict.fromkeys(names, 0)), Outcome.OK)
    while any(reader.positions[partition_of(p)] < end for p, end in until.items()):
        found = await reader.poll()
        for tp, its_rows in found.items():
            rows[str(tp)] += its_rows
        restarts = reader.take_restarts()
        if history is not None and found:
            operation = history.begin(Kind.POLL)
            history.polls(operation, polls_of(found))
            history.end(operation, Outcome.OK)
        if history is not None and restarts:
            history.end(history.begin(Kind.ASSIGN, offsets=restarts), Outcome.OK)
    if history is not None:
        history.end(history.begin(Kind.FINAL, offsets=until), Outcome.OK)
    return rows, until


async def audit(client: SimClient, name: str) -> list[BatchHeader]:
    """Return the headers of all batches, markers included, from the log start on."""
    end = (await ends(client, [name]))[name]
    offset = await log_start(client, name)
    headers: list[BatchHeader] = []
    while offset < end:
        partitions = [FetchPartition(*partition_of(name), offset, FETCH_BYTES)]
        request = FetchRequest(0, 1, FETCH_BYTES, READ_UNCOMMITTED, partitions)
        answer, payload = await client.ask(Api.FETCH, request, FetchResponse)
        (result,) = answer.results
        if result.error_code:
            error = error_from_code(result.error_code, result.message)
            if not isinstance(error, OffsetOutOfRangeError):
                raise error
            offset, headers = await log_start(client, name), []  # retention was quicker
            continue
        found = [header for _, header in iterate_batches(payload) if header.base_offset >= offset]
        headers += found
        offset = found[-1].next_offset if found else end
    return headers


async def log_start(client: SimClient, name: str) -> int:
    return (await ends(client, [name], timestamp=-2))[name]


async def committed_offsets(client: SimClient, group: str, names: Sequence[str], history: Recorder) -> None:
    """Read a group's committed offsets."""
    topics: dict[str, list[int]] = {}
    for name in names:
        topics.setdefault(partition_of(name).topic, []).append(partition_of(name).partition)
    wanted = [g.TopicPartitions(*item) for item in topics.items()]
    operation = history.begin(Kind.FETCH_COMMITTED)
    request = g.OffsetFetchRequest(group, wanted, require_stable=True)
    answer = await client.ask_until(Api.OFFSET_FETCH, request, g.OffsetFetchResponse)
    offsets: dict[str, int] = {}
    for found in answer.offsets:
        if found.error_code:
            raise error_from_code(found.error_code, found.message)
        offsets[f"{found.topic}-{found.partition}"] = max(found.offset, 0)
    history.end(operation, Outcome.OK, offsets=offsets)
