"""What must hold in `transactions_world`, whatever happens there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparklog.replication.transactions import End, EndShared, Identity, Join, Joined, Marker, Request
from sparklog.types import TopicPartition, shared_transactional_id
from tests.simulation.transactions_actors import Driver, Partition, Sent, check


class Promises:
    """Notes what has been asked and answered, and checks what follows from it."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition], drivers: Sequence[Driver]) -> None:
        self.partitions = partitions
        self.drivers = drivers
        self.commit_asked: set[tuple[str, int]] = set()
        self.newest_ticket: dict[str, tuple[int, str]] = {}
        self.decided_ids: dict[int, bool] = {}
        self.owner: dict[int, Driver] = {}
        self.committed_versions: set[tuple[str, int]] = set()

    def check_decision(self, markers: tuple[Marker, ...]) -> None:
        for marker in markers:
            driver = self.owner.get(marker.producer_id)
            if driver is None:
                continue
            known = self.decided_ids.setdefault(marker.producer_id, marker.commit)
            check(known == marker.commit, f"the decision about participant {marker.producer_id} has changed")

    def check_answer(self, request: Request, result: object) -> None:
        match request, result:
            case End(_, producer_id, producer_epoch, commit), Identity():
                for tp, partition in self.partitions.items():
                    check(
                        not any(
                            s.transaction_first_offset >= 0
                            and (s.producer_id, s.epoch) == (producer_id, producer_epoch)
                            for s in partition.rules
                        ),
                        f"an END is answered while {tp} waits for its marker",
                    )
                    for header, value, committed in partition.decided():
                        if (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch):
                            check(committed == commit, f"{value} is not as its END was answered")
            case EndShared(app, version, _, _, commit, _), bool(committed):
                if committed:
                    self.committed_versions.add((app, version))
                else:
                    check((app, version) not in self.committed_versions, "a committed version is called aborted")
                for tp, partition in self.partitions.items():
                    for producer_id in partition.open_producers():
                        driver = self.owner.get(producer_id)
                        of = None if driver is None else (shared_transactional_id(driver.app), driver.version)
                        check(
                            of != (app, version) or not commit,
                            f"version {version} is answered while {tp} waits for markers",
                        )
            case Join(app, version, run, ticket, _), Joined(identity):
                if identity is None:
                    check(
                        (app, version) in self.versions_with_commit_request(), "a version nobody has ended is committed"
                    )
                    self.committed_versions.add((app, version))
                else:
                    check((app, version) not in self.committed_versions, "a committed version is opened again")
                if ticket > self.newest_ticket.get(app, (-1, ""))[0]:
                    self.newest_ticket[app] = ticket, run
            case _:
                pass

    def versions_with_commit_request(self) -> set[tuple[str, int]]:
        return {
            (shared_transactional_id(d.app), d.version) for d in self.drivers if d.ended is not None and d.ended.commit
        }

    def check_partitions(self) -> None:
        committed_by_version: dict[tuple[str, int], set[int]] = {}
        decisions: dict[tuple[int, int], set[bool]] = {}
        for tp, partition in self.partitions.items():
            for header, value, committed in partition.decided():
                decisions.setdefault((header.producer_id, header.producer_epoch), set()).add(committed)
                assert isinstance(value, tuple)
                driver = self.owner.get(header.producer_id)
                if driver is not None and committed:
                    committed_by_version.setdefault((driver.app, driver.version), set()).add(header.producer_id)
                elif driver is None and committed:
                    check(
                        value[:2] in self.commit_asked, f"{value} in {tp} is committed, its client never asked for it"
                    )
        for key, found in decisions.items():
            check(len(found) == 1, f"the transaction of {key} is committed in one place and aborted in another")
        for (app, version), producer_ids in committed_by_version.items():
            requests = [
                d.ended
                for d in self.drivers
                if (d.app, d.version) == (app, version) and d.ended is not None and d.ended.commit
            ]
            check(
                any(producer_ids <= r.winners for r in requests),
                f"version {version} of {app} holds what {sorted(producer_ids)} wrote, which no driver has chosen together",
            )

    def check_marker(self, marker: Marker) -> None:
        """A run is fenced from the moment on that a newer one has been answered."""
        driver = self.owner.get(marker.producer_id)
        if driver is None or not marker.commit:
            return
        check(driver.ended is not None and driver.ended.commit, "what no driver has ended is committed")

    def check_fence(self, sent: Sent) -> None:
        """Notes of an END whether a newer run had been answered before it came: then it must not decide anything."""
        request = sent.request
        if isinstance(request, EndShared) and request.commit:
            ticket, run = self.newest_ticket.get(request.transactional_id, (-1, ""))
            if ticket > request.ticket and run != request.run_id:
                before = set(self.decided_ids)
                answer = sent.on_answer

                def on_answer(result: Any) -> None:
                    new = {p for p in self.decided_ids if p not in before and self.decided_ids[p]}
                    check(not new & request.winners, "a run has committed although a newer one had taken over")
                    answer(result)

                sent.on_answer = on_answer
