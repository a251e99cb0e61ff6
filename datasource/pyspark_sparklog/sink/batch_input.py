"""The input of a micro-batch: it distinguishes a batch that runs again from another one with its number.

Spark runs its last batch again if the driver ended between the sink's commit and its own. Then the batch's rows are in
the topic, although the rows of the second run may be others (a clock, a random number), and nothing is to be written. A
checkpoint that was set back gives the same numbers to batches with new input, whose rows are not stored.

If the checkpoint can be read here, the batch's beginning and end in its sources distinguish the two cases. Otherwise
the rows do, and different rows count as other input: a batch is never skipped whose rows are not in the topic.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from sparklog.client.transactions.shared_transaction import LastCommit, SharedTransaction
from sparklog.errors import StaleCheckpointError

log = logging.getLogger("pyspark_sparklog")

_TEXT = re.compile(
    r"query=(?P<query>[^ ]*) offsets=(?P<offsets>[0-9a-f]*) rows=(?P<rows>\d+) checksum=(?P<sum>[0-9a-f]*)"
)


class BatchInput(NamedTuple):
    """The input of one micro-batch.

    `offsets`: digest of the batch's beginning and end in its sources, "" unknown; `checksum`: of its `rows` rows, None
    if it was not needed.
    """

    query_id: str
    offsets: str
    rows: int
    checksum: int | None

    def encode(self) -> str:
        """Encode the input as it is kept with the transaction."""
        checksum = "" if self.checksum is None else f"{self.checksum:016x}"
        return f"query={self.query_id} offsets={self.offsets} rows={self.rows} checksum={checksum}"

    @classmethod
    def decode(cls, text: str) -> BatchInput | None:
        """Return the decoded input; None for a text that is no result of `encode`."""
        found = _TEXT.match(text)
        if found is None:
            return None
        checksum = int(found["sum"], 16) if found["sum"] else None
        return cls(found["query"], found["offsets"], int(found["rows"]), checksum)

    def is_same(self, other: BatchInput) -> bool:
        """True if the two are known to be one batch."""
        if self.query_id != other.query_id:
            return False
        if self.offsets and other.offsets:
            return self.offsets == other.offsets
        if self.rows == 0:
            return True  # there is nothing to lose
        known = self.checksum is not None and other.checksum is not None
        return known and (self.rows, self.checksum) == (other.rows, other.checksum)


def check_number(transaction: SharedTransaction, last: LastCommit) -> None:
    """Check a batch's number before the batch is written or skipped. Raises StaleCheckpointError if it is below the
    last committed one."""
    if last.version > transaction.version:
        raise StaleCheckpointError(
            f"batch {transaction.version} of {transaction.app_id} is not written: batches up to {last.version} have "
            "been committed "
            f"before, and Spark repeats only the last batch. {_WAYS_OUT}"
        )


def check_input(transaction: SharedTransaction, last: LastCommit, ours: BatchInput) -> None:
    """Check a batch's input after a batch of this number has been committed, now or before.

    Raises StaleCheckpointError if the topic has another batch of that number, or a later one: the rows of this one are
    not in it.
    """
    check_number(transaction, last)
    if last.version < transaction.version:
        return  # a broker that does not tell
    theirs = BatchInput.decode(last.input)
    if theirs is None:
        log.warning("%s: cannot check if it was committed with the same input", transaction.app_id)
    elif not ours.is_same(theirs):
        raise StaleCheckpointError(
            f"batch {transaction.version} of {transaction.app_id} has been committed before with other input "
            f"({_difference(theirs, ours)}): "
            f"its {ours.rows} rows are not in the topic. {_WAYS_OUT}"
        )


_WAYS_OUT = (
    "The checkpoint was set back (restored from a copy, or deleted in part), or another query writes under the same "
    "txnAppId. "
    "Either start the query with a new checkpoint location, or set the option txnAppId to a name that was not used "
    "before: "
    "then this batch and all later batches are written. Choose starting offsets behind the input of the records that "
    "the topic already has"
)


def _difference(theirs: BatchInput, ours: BatchInput) -> str:
    if theirs.query_id != ours.query_id:
        return f"by query {theirs.query_id}, this query is {ours.query_id}"
    if theirs.offsets and ours.offsets:
        return "other offsets of its sources"
    if theirs.rows != ours.rows:
        return f"{theirs.rows} rows then"
    return "other rows; the source offsets cannot be compared, because the checkpoint is not on a disk of the driver"
