"""Leaders' proposals of in-sync replicas, collected for a short time and sent to the controller in one request."""

from __future__ import annotations

import asyncio
import logging

from sparklog.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    SparklogError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrDecision,
    IsrMember,
    IsrProposal,
)
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.controller.model import AlterPartition, IsrChange
from sparklog.replication.image_codec import decode_partition, encode
from sparklog.replication.replica.model import AlterOutcome, ProposalResult, ProposeIsr
from sparklog.types import TopicPartition
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.replica import ClusterReplica

log = logging.getLogger(__name__)

GATHER_S = 0.01
TIMEOUT_S = 5.0
BATCH_MAX = 10_000
Result = PartitionImage | SparklogError


class IsrProposals:
    """Sends proposals to the controller. The leader's rules repeat a proposal that gets no decision. Event-loop thread
    only."""

    def __init__(self, membership: Membership, controller: ControllerClient, broker_id: int) -> None:
        self._membership = membership
        self._controller = controller
        self._broker_id = broker_id
        self._waiting: dict[TopicPartition, tuple[ClusterReplica, ProposeIsr]] = {}
        self._has_proposals = asyncio.Event()

    def add(self, replica: ClusterReplica, proposal: ProposeIsr) -> None:
        """Add a proposal. It replaces an unsent proposal of the same partition."""
        self._waiting[replica.key] = replica, proposal
        self._has_proposals.set()

    async def run(self) -> None:
        """Send proposals, until cancelled."""
        while True:
            await self._has_proposals.wait()
            await asyncio.sleep(GATHER_S)
            keys = list(self._waiting)[:BATCH_MAX]
            batch = [self._waiting.pop(key) for key in keys]
            if not self._waiting:
                self._has_proposals.clear()
            results = await self._decide([(replica.key, proposal) for replica, proposal in batch])
            for (replica, proposal), result in zip(batch, results, strict=True):
                replica.handle(answer_to(proposal, result))

    async def _decide(self, proposals: list[tuple[TopicPartition, ProposeIsr]]) -> list[Result]:
        try:
            request = AlterPartitionRequest(
                self._broker_id,
                self._membership.registration.broker_epoch,
                [
                    IsrProposal(*key, p.leader_epoch, p.partition_epoch, [IsrMember(*m) for m in p.isr], p.recovering)
                    for key, p in proposals
                ],
            )
            if await self._controller.find():
                decisions = await decide(self._membership, request)
            else:
                answer = await self._controller.request(
                    "isr", Api.ALTER_PARTITION, request, AlterPartitionResponse, timeout_s=TIMEOUT_S
                )
                decisions = answer.decisions
            if len(decisions) != len(proposals):
                raise SparklogError(f"{len(decisions)} decisions for {len(proposals)} proposals")
            return [_result(d) for d in decisions]
        except SparklogError as e:
            log.info("the in-sync replicas of %d partitions could not be changed yet: %s", len(proposals), e)
            return [e] * len(proposals)


async def decide(membership: Membership, request: AlterPartitionRequest) -> list[IsrDecision]:
    """Have this broker, as the controller, decide the proposals. Raises NotControllerError, StaleBrokerEpochError."""
    changes = tuple(
        IsrChange(
            TopicPartition(p.topic, p.partition),
            p.leader_epoch,
            p.partition_epoch,
            tuple((m.broker_id, m.broker_epoch) for m in p.isr),
            p.recovering,
        )
        for p in request.proposals
    )
    results: tuple[Result, ...] = await membership.ask(
        lambda token: AlterPartition(token, request.broker_id, request.broker_epoch, changes)
    )
    return [
        IsrDecision(0, "", encode(r)) if isinstance(r, PartitionImage) else IsrDecision(r.code, str(r)) for r in results
    ]


def _result(decision: IsrDecision) -> Result:
    if decision.error_code:
        return error_from_code(decision.error_code, decision.message)
    return decode_partition(decision.state)


def answer_to(proposal: ProposeIsr, result: Result) -> ProposalResult:
    """Return the controller's decision as an event for the leader's rules."""
    match result:
        case PartitionImage():
            return ProposalResult(proposal.partition_epoch, AlterOutcome.COMMITTED, result)
        case IneligibleReplicaError():
            outcome = AlterOutcome.INELIGIBLE
        case InvalidUpdateVersionError() | FencedLeaderEpochError():
            outcome = AlterOutcome.STALE
        case _:
            outcome = AlterOutcome.UNKNOWN
    return ProposalResult(proposal.partition_epoch, outcome)
