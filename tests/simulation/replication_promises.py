"""The promises of replication that hold in every state of `replication_world`."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.replication_log import SimLog, SimRecord


class ViolationError(AssertionError):
    """A broken promise."""


class Acknowledged(NamedTuple):
    """A record acknowledged to a producer with acks=all."""

    offset: int
    value: int
    epoch: int


def check(holds: bool, message: str) -> None:
    if not holds:
        raise ViolationError(message)


class Promises:
    """Notes the acknowledged and the visible records, and checks the consequences."""

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.committed: dict[int, SimRecord] = {}
        self._leader_of: dict[int, tuple[int, int]] = {}
        self._latest: tuple[int, int] = (-1, 0)

    @property
    def epochs_with_acknowledgements(self) -> int:
        return len(self._leader_of)

    def on_leader(self, epoch: int, broker: tuple[int, int], log: SimLog) -> None:
        """Check that `broker` (id and life), which begins to lead in `epoch`, has all acknowledged records in its
        log."""
        for offset, value, ack_epoch in self.acknowledged:
            if ack_epoch < epoch:
                found = log.at(offset)
                check(
                    found is not None and found.value == value,
                    f"leader {broker} of epoch {epoch} has {found} at {offset}, where {value} was acknowledged",
                )

    def on_acknowledge(self, epoch: int, broker: tuple[int, int], offset: int, value: int, log: SimLog) -> None:
        known = self._leader_of.setdefault(epoch, broker)
        check(known == broker, f"{known} and {broker} acknowledge in epoch {epoch}")
        found = log.at(offset)
        check(found is not None and found.value == value, f"{value} is acknowledged at {offset}, where {found} is")
        self.acknowledged.append(Acknowledged(offset, value, epoch))

    def on_high_watermark(self, broker: int, before: int, after: int, log: SimLog) -> None:
        """Check that all logs agree below the high watermarks, forever."""
        check(after <= log.log_end_offset, f"broker {broker}: high watermark {after} beyond {log.log_end_offset}")
        for offset in range(before, after):
            found = log.at(offset)
            if found is not None:
                known = self.committed.setdefault(offset, found)
                check(known == found, f"broker {broker} shows {found} at {offset}, where {known} was shown")

    def on_truncate(self, broker: int, offset: int, log: SimLog) -> None:
        check(offset >= log.high_watermark, f"broker {broker} cuts {offset}, {log.high_watermark} was shown")

    def on_latest(self, epoch: int, latest: int) -> None:
        """Check the end offset for consumers, which never return to an older leader (KIP-207)."""
        newest, shown = self._latest
        if epoch >= newest:
            check(latest >= shown, f"the end goes back from {shown} to {latest} with epoch {epoch}")
            self._latest = epoch, latest

    def at_rest(self, leader: SimLog, logs: dict[int, SimLog]) -> None:
        """Check, after all brokers are back, that acknowledged records exist and all replicas are equal."""
        for offset, value, _ in self.acknowledged:
            found = leader.at(offset)
            check(found is not None and found.value == value, f"{value}, acknowledged at {offset}, is lost: {found}")
        for broker, log in logs.items():
            check(log.records == leader.records, f"the log of broker {broker} is not the leader's")
            check(
                log.epochs.entries == leader.epochs.entries or log.epochs.latest <= leader.epochs.latest,
                f"broker {broker} knows epochs that the leader does not",
            )
