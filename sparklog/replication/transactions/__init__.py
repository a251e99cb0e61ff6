"""The transaction coordinator of one partition of `__transaction_state`: pure rules, see `coordinator`."""

from __future__ import annotations

from sparklog.replication.transactions.coordinator import Coordinator
from sparklog.replication.transactions.model import (
    Abort,
    AddPartitions,
    Answer,
    Effects,
    End,
    EndShared,
    IdReserve,
    InitProducer,
    Join,
    JoinAnswer,
    Marker,
    Refuse,
    Renew,
    RenewAnswer,
    Request,
    Safeguards,
    State,
    TransactionLimits,
    WriteMarkers,
    is_shared,
)

__all__ = [
    "Abort",
    "AddPartitions",
    "Answer",
    "Coordinator",
    "Effects",
    "End",
    "EndShared",
    "IdReserve",
    "InitProducer",
    "Join",
    "JoinAnswer",
    "Marker",
    "Refuse",
    "Renew",
    "RenewAnswer",
    "Request",
    "Safeguards",
    "State",
    "TransactionLimits",
    "WriteMarkers",
    "is_shared",
]
