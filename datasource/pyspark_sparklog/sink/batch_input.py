"""The input of a micro-batch: it shows if a batch number that was committed before is the same batch or a new one.

Spark runs its last micro-batch again if the driver died after the sink's commit and before Spark's own commit. Then the
rows are in the topic, and nothing must be written, although the second run can produce different rows (by a clock or a
random number). A checkpoint that was set back gives used numbers to micro-batches with new input, whose rows are not in
the topic.

If this process can read the checkpoint, the start and end offsets of the sources distinguish the two cases. Otherwise
the number of rows and their checksum do. Different rows then count as different input, so a micro-batch whose rows are
not in the topic is never skipped.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sparklog.client.transactions.shared_transaction import LastCommit, SharedTransaction
from sparklog.errors import SparklogError, StaleCheckpointError

_TEXT = re.compile(
    r"query=(?P<query>[^ ]*) offsets=(?P<offsets>[0-9a-f]*) rows=(?P<rows>\d+) checksum=(?P<sum>[0-9a-f]*)"
)


class BatchInput(NamedTuple):
    """The input of one micro-batch.

    `offsets`: digest of the start and end offsets in the sources, "" if unknown. `rows`: number of rows. `checksum`:
    checksum of the rows, None if it was not needed.
    """

    query_id: str
    offsets: str
    rows: int
    checksum: int | None

    def encode(self) -> str:
        """Return the text that the coordinator stores with the transaction."""
        checksum = "" if self.checksum is None else f"{self.checksum:016x}"
        return f"query={self.query_id} offsets={self.offsets} rows={self.rows} checksum={checksum}"

    @classmethod
    def decode(cls, text: str) -> BatchInput | None:
        """Return the decoded input; None for a text that is no result of `encode`."""
        match = _TEXT.match(text)
        if match is None:
            return None
        checksum = int(match["sum"], 16) if match["sum"] else None
        return cls(match["query"], match["offsets"], int(match["rows"]), checksum)

    def is_same(self, other: BatchInput) -> bool:
        """True if both inputs are known to be of the same query and batch: by offsets if both have them, else by number
        of rows and checksum. Without offsets, an input without rows equals any other of the query."""
        if self.query_id != other.query_id:
            return False
        if self.offsets and other.offsets:
            return self.offsets == other.offsets
        if self.rows == 0:
            return True  # there is nothing to lose
        have_checksums = self.checksum is not None and other.checksum is not None
        return have_checksums and (self.rows, self.checksum) == (other.rows, other.checksum)


def check_reported(transaction: SharedTransaction, last: LastCommit) -> None:
    """Check the last commit in an answer which says that `transaction` is committed. Raises SparklogError if the
    commit is of a lower version: then the answer contradicts itself, and the rows are perhaps not in the topic."""
    if last.version < transaction.version:
        raise SparklogError(
            f"the coordinator says that version {transaction.version} of {transaction.app_id} is committed, and that "
            f"version {last.version} was committed last: its rows cannot be left out"
        )


def check_number(transaction: SharedTransaction, last: LastCommit) -> None:
    """Check a micro-batch's number before the batch is written or skipped. Raises StaleCheckpointError if the number is
    below that of `last`, the application's last commit."""
    if last.version > transaction.version:
        raise StaleCheckpointError(
            f"batch {transaction.version} of {transaction.app_id} is not written: batches up to {last.version} have "
            f"been committed before, and Spark repeats only the last batch. {_WAYS_OUT}"
        )


def check_input(transaction: SharedTransaction, last: LastCommit, ours: BatchInput) -> None:
    """Check a micro-batch whose number is committed: that commit must have the input `ours`. Then its rows are in the
    topic, which is not read.

    Raises StaleCheckpointError if the input differs or is not known, or if a later batch is committed.
    """
    check_number(transaction, last)
    theirs = BatchInput.decode(last.input)
    if theirs is None and ours.rows:
        difference = "a write that is no micro-batch" if not last.input else f"{last.input:.100}"
    elif theirs is not None and not ours.is_same(theirs):
        difference = _difference(theirs, ours)
    else:
        return
    raise StaleCheckpointError(
        f"batch {transaction.version} of {transaction.app_id} has been committed before with other input "
        f"({difference}): its {ours.rows} rows are not in the topic. {_WAYS_OUT}"
    )


_WAYS_OUT = (
    "The checkpoint was set back (restored from a copy, or deleted in part), or another query writes under the same "
    "txnAppId. Either start the query with a new checkpoint location, or set the option txnAppId to a name that was "
    "not used before: then this batch and all later batches are written. Choose starting offsets behind the input of "
    "the records that the topic already has"
)


def _difference(theirs: BatchInput, ours: BatchInput) -> str:
    if theirs.query_id != ours.query_id:
        return f"by query {theirs.query_id}, this query is {ours.query_id}"
    if theirs.offsets and ours.offsets:
        return "other offsets of its sources"
    if theirs.rows != ours.rows:
        return f"{theirs.rows} rows then"
    return "other rows; the source offsets cannot be compared, because the checkpoint is not on a disk of the driver"
