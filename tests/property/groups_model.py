"""Members, their network and a coordinator that crashes, to be driven at random.

A client has every fault of real clients: requests are lost, arrive late or twice, it releases partitions late, it
freezes until it is removed and then continues as if nothing had happened. Answers are given when the records before
them are safe; a crash loses any part of the unsafe ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from sparklog.client.group.membership import MemberConfig, Membership
from sparklog.errors import RequestTimedOutError, SparklogError
from sparklog.protocol import group_messages as m
from sparklog.replication.group_membership import GroupConfig, Safeguards
from sparklog.replication.group_records import Record
from sparklog.replication.groups import GroupCoordinator
from sparklog.types import TopicPartition

GROUP = "g"
TOPICS: dict[str, tuple[str, int]] = {"a": ("id-a", 3), "b": ("id-b", 2)}
PARTITIONS = [TopicPartition(t, p) for t, (_, n) in TOPICS.items() for p in range(n)]
SESSION_MS, REBALANCE_MS = 1000, 60_000


class LogEntry(NamedTuple):
    """A batch, or (marker not None) the end of the producer's transaction."""

    records: list[Record]
    producer_id: int = -1
    marker: bool | None = None


class Client:
    """A member's process: the client library's `Membership`, and a thread that polls now and then."""

    def __init__(self, member_id: str, topics: list[str], instance_id: str | None) -> None:
        config = MemberConfig(GROUP, instance_id, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS)
        self.membership = Membership(config)
        self.membership.member_id = member_id
        self.membership.subscribe(topics)
        self.positions: dict[TopicPartition, int] = {}
        self.had: set[TopicPartition] = set()
        self.commits = 0
        self.waiting_for = -1
        self.gone = False

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def epoch(self) -> int:
        return self.membership.epoch

    @property
    def held(self) -> frozenset[TopicPartition]:
        return frozenset() if self.gone else self.membership.held

    def request(self) -> m.GroupHeartbeatRequest:
        if self.waiting_for >= 0:
            self.membership.failed(RequestTimedOutError("no answer to the last one"))
        request = self.membership.request()
        self.waiting_for = request.sequence
        return request

    def poll(self, committed: Callable[[TopicPartition], int]) -> None:
        """Accept the new partitions; those to be released stay until `let_go`."""
        for tp in self.membership.changes().added:
            self.positions[tp] = committed(tp)
            self.had.add(tp)

    def let_go(self) -> None:
        revoked = self.membership.held - self.membership.assigned
        if revoked:
            self.membership.let_go(revoked)


class Answer(NamedTuple):
    """On its way back; `safe_at`: how many log entries must be safe before."""

    client: Client
    sequence: int
    safe_at: int
    response: m.GroupHeartbeatResponse | SparklogError


class World:
    """Everything together; the methods are the possible events."""

    def __init__(self, safeguards: Safeguards = Safeguards()) -> None:  # noqa: B008
        self.safeguards = safeguards
        self.topics = dict(TOPICS)
        self.now_ms = 1_000_000
        self.log: list[LogEntry] = []
        self.safe = 0
        self.coordinator = self._load()
        self.clients: list[Client] = []
        self.requests: list[tuple[Client, m.GroupHeartbeatRequest]] = []
        self.commits: list[tuple[Client, m.OffsetCommitRequest]] = []
        self.answers: list[Answer] = []
        self.open_transactions: dict[int, bool] = {}
        self.resets: set[TopicPartition] = set()
        self.reserved_until_ms = 0

    def _load(self) -> GroupCoordinator:
        made = GroupCoordinator(GroupConfig(), self.topics, self.safeguards)
        for entry in self.log:
            for key, value in entry.records:
                made.replay(key, value, entry.producer_id)
            if entry.marker is not None:
                made.end_transaction(entry.producer_id, committed=entry.marker)
        self._append(made.loaded(self.now_ms, self.now_ms))
        return made

    def _append(self, records: list[Record], producer_id: int = -1) -> None:
        if records:
            self.log.append(LogEntry(records, producer_id))

    # -- clients

    def join(self, topics: list[str], instance_id: str | None = None) -> None:
        self.clients.append(Client(f"m{len(self.clients)}", topics, instance_id))

    def kill(self, client: Client) -> None:
        client.gone = True

    def poll(self, client: Client) -> None:
        def committed(tp: TopicPartition) -> int:
            value = self.coordinator.offsets.get(GROUP, tp)
            return 0 if value is None else value.offset

        client.poll(committed)

    def heartbeat(self, client: Client) -> None:
        self.requests.append((client, client.request()))

    def leave(self, client: Client) -> None:
        self.kill(client)
        self.requests.append((client, client.membership.leave_request()))

    def subscribe(self, client: Client, topics: list[str]) -> None:
        client.membership.subscribe(topics)

    def send_commit(self, client: Client, tp: TopicPartition, processed: int) -> None:
        position = client.positions[tp] = client.positions.get(tp, 0) + processed
        client.commits += 1
        offsets = [m.CommittedOffset(*tp, position)]
        self.commits.append(
            (client, m.OffsetCommitRequest(GROUP, offsets, client.member_id, client.epoch, client.commits))
        )

    # -- the network and the coordinator

    def deliver(self, index: int, *, keep: bool) -> None:
        """A request arrives; `keep`: a copy of it arrives later, too."""
        client, request = self.requests[index]
        if not keep:
            del self.requests[index]
        response: m.GroupHeartbeatResponse | SparklogError
        is_closed = self.reserved_until_ms > self.now_ms and not self.coordinator.describe(GROUP).members
        try:
            response, records = self.coordinator.heartbeat(request, "h", self.now_ms, self.now_ms)
            self._append(records)
        except SparklogError as e:
            response = e
        assert not (is_closed and self.coordinator.describe(GROUP).members), "a member has joined a reserved group"
        self.answers.append(Answer(client, request.sequence, len(self.log), response))
        self.check_owners()

    def reserve(self, ms: int) -> None:
        """The gateway reserves the group for its classic members; 0: it has none any more."""
        with suppress(SparklogError):
            self.coordinator.heartbeat(
                m.GroupHeartbeatRequest(GROUP, "gateway", -1, reserve_ms=ms), "h", self.now_ms, self.now_ms
            )
        self.reserved_until_ms = self.now_ms + ms

    def deliver_commit(self, index: int, *, keep: bool) -> None:
        client, request = self.commits[index]
        if not keep:
            del self.commits[index]
        (wanted,) = request.offsets
        tp = TopicPartition(wanted.topic, wanted.partition)
        before = self.coordinator.offsets.get(GROUP, tp)
        try:
            (result,), records = self.coordinator.commit(
                GROUP,
                request.offsets,
                request.member_id,
                request.member_epoch,
                self.now_ms,
                sequence=request.sequence,
            )
        except SparklogError:
            return
        if result.error_code:
            return
        self._append(records)
        others = [c for c in self.valid_clients() if c is not client and tp in c.held]
        assert not others, f"{client.member_id} commits {tp}, which {others[0].member_id} reads"
        if before is not None and not self.open_transactions and tp not in self.resets:
            assert wanted.offset >= before.offset, f"{tp} goes back from {before.offset} to {wanted.offset}"
        self.resets.discard(tp)

    def answer(self, index: int) -> None:
        """An answer arrives, if its client still waits for it."""
        self.make_safe(self.answers[index].safe_at)
        client, sequence, _, response = self.answers.pop(index)
        if client.gone or sequence != client.waiting_for:
            return
        client.waiting_for = -1
        if isinstance(response, SparklogError):
            client.membership.failed(response)
        else:
            client.membership.answered(response)

    def make_safe(self, entries: int) -> None:
        self.safe = max(self.safe, entries)

    def crash(self, lost: int) -> None:
        """The coordinator starts anew; up to `lost` of its last appends are gone, with every connection."""
        del self.log[max(self.safe, len(self.log) - lost) :]
        self.safe = len(self.log)
        self.requests, self.commits, self.answers = [], [], []
        self.reserved_until_ms = 0  # the gateway renews it
        self.coordinator = self._load()
        self.check_restart()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self._append(self.coordinator.tick(self.now_ms, self.now_ms))

    def change_topics(self, topics: dict[str, tuple[str, int]]) -> None:
        self.topics = topics
        self.resets |= set(PARTITIONS)
        self._append(self.coordinator.set_topics(topics, self.now_ms))

    # -- transactions, of programs that are no members

    def commit_in_transaction(self, producer_id: int, tp: TopicPartition, offset: int) -> None:
        if self.coordinator.describe(GROUP).members:
            return
        (result,), records = self.coordinator.commit(
            GROUP, [m.CommittedOffset(*tp, offset)], "", -1, self.now_ms, producer_id=producer_id
        )
        if not result.error_code:
            self._append(records, producer_id)
            self.open_transactions[producer_id] = True
            self.resets.add(tp)
        self.check_offsets()

    def commit_alone(self, tp: TopicPartition, offset: int) -> None:
        if not self.coordinator.describe(GROUP).members:
            _, records = self.coordinator.commit(GROUP, [m.CommittedOffset(*tp, offset)], "", -1, self.now_ms)
            self._append(records)
            self.resets.add(tp)
        self.check_offsets()

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        if self.open_transactions.pop(producer_id, None):
            self.log.append(LogEntry([], producer_id, committed))
            self.make_safe(len(self.log))
            self.coordinator.end_transaction(producer_id, committed=committed)
            self.resets |= set(PARTITIONS)
        self.check_offsets()

    # -- what must be true

    def owner(self, tp: TopicPartition) -> str | None:
        group = self.coordinator._groups.get(GROUP)
        return None if group is None else group.owners.get(tp)

    def valid_clients(self) -> list[Client]:
        """Clients that the coordinator believes in: not yet put out, and not replaced."""
        group = self.coordinator._groups.get(GROUP)
        found = []
        for client in self.clients:
            member = None if group is None else group.members.get(client.member_id)
            known = (
                member is not None
                and client.epoch > 0
                and client.epoch in (member.epoch, member.previous_epoch)
                and member.last_sequence <= client.membership._sequence
            )
            if known and not client.gone:
                found.append(client)
        return found

    def check_owners(self) -> None:
        seen: dict[TopicPartition, str] = {}
        for client in self.valid_clients():
            for tp in client.held:
                assert tp not in seen, f"{tp} is read by {seen[tp]} and {client.member_id}"
                seen[tp] = client.member_id

    def check_offsets(self) -> None:
        """The offsets are those of the last record that counts, worked out from the log alone."""
        expected = GroupCoordinator(GroupConfig(), self.topics)
        plain: dict[bytes, tuple[int, bytes | None]] = {}
        pending: dict[int, list[tuple[int, Record]]] = {}
        for i, entry in enumerate(self.log):
            if entry.marker is None and entry.producer_id < 0:
                plain.update({k: (i, v) for k, v in entry.records})
            elif entry.marker is None:
                pending.setdefault(entry.producer_id, []).extend((i, r) for r in entry.records)
            else:
                for at, (k, v) in pending.pop(entry.producer_id, []):
                    if entry.marker and plain.get(k, (-1, None))[0] < at:
                        plain[k] = (at, v)
        for k, (_, v) in plain.items():
            expected.replay(k, v)
        ours, theirs = self.coordinator.offsets.of_group(GROUP), expected.offsets.of_group(GROUP)
        assert ours == theirs, f"offsets {ours}, the log says {theirs}"

    def check_restart(self) -> None:
        """A coordinator made of the log is as the one that wrote it."""
        again, ours = state_of(self._load()), state_of(self.coordinator)
        assert again == ours, f"{ours}, after a restart {again}"

    def settle(self) -> None:
        """Everything works for a while: then every partition is read by exactly one client."""
        while self.requests:
            self.deliver(0, keep=False)
        while self.answers:
            self.answer(0)
        for _ in range(50):  # sessions end meanwhile, rebalance timeouts do not: nobody may need one
            self.pass_time(250)
            for client in [c for c in self.clients if not c.gone]:
                self.poll(client)
                client.let_go()
                self.heartbeat(client)
                self.deliver(len(self.requests) - 1, keep=False)
                self.answer(len(self.answers) - 1)
                self.poll(client)
                self.check_owners()
        alive = [c for c in self.clients if not c.gone]
        wanted = {TopicPartition(t, p) for t, (_, n) in self.topics.items() for p in range(n)}
        wanted = {tp for tp in wanted if any(tp.topic in c.membership.topics for c in alive)}
        held = [tp for c in alive for tp in c.held]
        assert sorted(held) == sorted(wanted), f"held {sorted(held)}, there are {sorted(wanted)}"
        if alive:
            assert self.coordinator.describe(GROUP).state == "Stable"


def state_of(coordinator: GroupCoordinator) -> Any:
    """All that a restart has to keep."""
    groups = {
        group_id: (
            replace(g, members={}, out=[], owners=dict(sorted(g.owners.items()))),
            {i: (mem.wish, mem.current) for i, mem in sorted(g.members.items())},
        )
        for group_id, g in coordinator._groups.items()
    }
    offsets = {g: coordinator.offsets.of_group(g) for g in coordinator.offsets.groups()}
    return groups, offsets
