"""Members of groups in a life: those that commit their positions, and those that consume, transform and produce."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sparklog.client.group.membership import EPOCH_JOIN, MemberConfig, Membership
from sparklog.errors import SparklogError, error_from_code
from sparklog.protocol import group_messages as g
from sparklog.protocol.apis import Api
from sparklog.testing._sim_reader import SimReader
from sparklog.types import TopicPartition
from tests.campaigns.checker import generate
from tests.campaigns.checker.history import Kind, Outcome
from tests.simulation.sim_final import committed_offsets
from tests.simulation.sim_roles import (
    ClientContext,
    Role,
    Transactions,
    end_transaction,
    note_assignment,
    note_poll,
    partition_of,
    polls_of,
)

SESSION_TIMEOUT_MS = 6_000


class Member:
    """A member of a group that reads the inputs, with heartbeats in the background."""

    def __init__(self, context: ClientContext, group: str) -> None:
        self._context = context
        self.group = group
        self.membership = Membership(MemberConfig(group, session_timeout_ms=SESSION_TIMEOUT_MS))
        self.membership.member_id = f"{context.seed}-{context.number}"
        self.membership.subscribe({partition_of(p).topic for p in context.inputs})
        self.reader = SimReader(context.client, committed=True)
        self._sequence = 0
        self._beating = context.client.loop.create_task(self._beat())

    async def _beat(self) -> None:
        notes, me = self._context.notes, self.membership.member_id
        while True:
            wait_s = 0.1
            held, sent_s = self.membership.held, self._context.client.loop.time()
            try:
                answer, _ = await self._context.client.ask(
                    Api.GROUP_HEARTBEAT, self.membership.request(), g.GroupHeartbeatResponse
                )
                self.membership.answered(answer)
                notes.confirmed(self.group, me, sent_s, held)
                notes.granted(self.group, me, sent_s, self.membership.assigned)
                wait_s = answer.heartbeat_interval_ms / 1000
            except SparklogError as e:
                if not self.membership.failed(e):
                    raise
                if self.membership.epoch == EPOCH_JOIN:
                    notes.lost(self.group, me)
            due = self._context.client.loop.time() + wait_s
            await asyncio.sleep(0.05)
            while self._context.client.loop.time() < due and not self.membership.has_news:
                await asyncio.sleep(0.1)

    async def take_changes(self) -> None:
        """Release revoked partitions, and start new ones at the group's offsets. Raises SparklogError."""
        lost, revoked, added = self.membership.changes()
        for tp in lost | revoked:
            self.reader.positions.pop(tp, None)
        if revoked:
            self.membership.let_go(revoked)
        if added:
            try:
                positions = await self.committed(added)
            except SparklogError:
                self.membership.not_taken(added)
                raise
            self.reader.positions |= positions
            note_assignment(self._context, {str(tp): -1 for tp in added})

    async def committed(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        topics: dict[str, list[int]] = {}
        for tp in sorted(partitions):
            topics.setdefault(tp.topic, []).append(tp.partition)
        request = g.OffsetFetchRequest(
            self.group,
            [g.TopicPartitions(*item) for item in topics.items()],
            require_stable=True,
            member_id=self.membership.member_id,
            member_epoch=self.membership.epoch,
        )
        history = self._context.history
        operation = history.begin(Kind.FETCH_COMMITTED)
        answer, _ = await self._context.client.ask(Api.OFFSET_FETCH, request, g.OffsetFetchResponse)
        for found in answer.offsets:
            if found.error_code:
                raise error_from_code(found.error_code, found.message)
        offsets = {TopicPartition(f.topic, f.partition): max(f.offset, 0) for f in answer.offsets}
        history.end(operation, Outcome.OK, offsets={str(tp): offset for tp, offset in offsets.items()})
        return offsets

    async def commit(self, offsets: Mapping[str, int]) -> None:
        self._sequence += 1
        committed = [g.CommittedOffset(*partition_of(p), o) for p, o in offsets.items()]
        request = g.OffsetCommitRequest(
            self.group, committed, self.membership.member_id, self.membership.epoch, self._sequence
        )
        answer, _ = await self._context.client.ask(Api.OFFSET_COMMIT, request, g.OffsetCommitResponse)
        for result in answer.results:
            if result.error_code:
                raise error_from_code(result.error_code, result.message)

    async def leave(self) -> None:
        """Leave the group."""
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._context.notes.lost(self.group, self.membership.member_id)
        if self.membership.epoch != EPOCH_JOIN:
            request = self.membership.leave_request()
            await self._context.client.ask(Api.GROUP_HEARTBEAT, request, g.GroupHeartbeatResponse)

    async def poll(self) -> list[tuple[str, list[int], list[int]]]:
        """Return the next records of this member. Raises SparklogError."""
        if self._beating.done():
            self._beating.result()
        if self.membership.changed:
            await self.take_changes()
        if not self.reader.positions:
            await asyncio.sleep(0.1)
            return []
        held = set(self.reader.positions)
        found = await self.reader.poll()
        restarts = self.reader.take_restarts()
        if restarts:
            note_assignment(self._context, restarts)
        return polls_of({tp: rows for tp, rows in found.items() if tp in held and tp in self.membership.held})


async def member(context: ClientContext) -> None:
    """Run a member that commits its positions."""
    member = Member(context, "group")
    while context.wanted():
        await context.think()
        try:
            polls = await member.poll()
            note_poll(context, polls)
            if polls:
                positions = {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
                operation = context.history.begin(Kind.COMMIT, offsets=positions)
                try:
                    await member.commit(positions)
                except SparklogError:
                    context.history.end(operation, Outcome.UNKNOWN)
                else:
                    context.history.end(operation, Outcome.OK)
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
    await member.leave()


async def pipeline(context: ClientContext) -> None:
    """Consume, transform, produce: one output for each input, with the offsets in one transaction."""
    values = generate.unique_values(context.number)
    transactions = Transactions(context, f"pipeline-{context.slot}")
    await transactions.init()
    member = Member(context, "pipeline")
    intents = generate.pipelines(context.seed, context.number, context.outputs)
    while context.wanted():
        await context.think()
        try:
            polls = await member.poll()
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
            continue
        if polls:
            await _transform(context, member, transactions, polls, next(intents), values)
    await member.leave()


async def _transform(
    context: ClientContext, member: Member, transactions: Transactions, polls: list[Any], intent: Any, values: Any
) -> None:
    sources = [value for _, _, polled in polls for value in polled]
    mine = [next(values) for _ in sources]
    positions = {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
    operation = context.history.begin(Kind.TRANSACTION)
    context.history.polls(operation, polls)
    context.history.sends(operation, [(intent.partition, mine, sources)])
    context.history.offsets(operation, positions)
    commit = intent.commit
    acked: list[list[int]] = []
    try:
        acked = [await transactions.send(intent.partition, mine)]
        await transactions.send_offsets(positions, member.group, member.membership.member_id, member.membership.epoch)
    except SparklogError:
        commit = False
    outcome = await end_transaction(context, transactions, operation, acked, commit=commit)
    back = {p: offsets[0] for p, offsets, _ in polls if partition_of(p) in member.reader.positions}
    if outcome is Outcome.FAILED:
        member.reader.positions |= {partition_of(p): offset for p, offset in back.items()}
        note_assignment(context, back)
    elif outcome is Outcome.UNKNOWN:  # the group has the outcome
        for p in back:
            del member.reader.positions[partition_of(p)]
        member.membership.not_taken(frozenset(map(partition_of, back)) & member.membership.assigned)


async def auditor(context: ClientContext) -> None:
    """Read the group's committed offsets repeatedly."""
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.1)
        try:
            await committed_offsets(context.client, "group", context.inputs, context.history)
        except SparklogError as e:
            if not e.retriable:
                raise


ROLES: dict[str, Role] = {"member": member, "pipeline": pipeline, "auditor": auditor}
