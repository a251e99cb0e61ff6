"""Changes of security records: decided by the controller, in effect on every broker with the image that contains
them."""

from __future__ import annotations

from sparklog.errors import RequestTimedOutError
from sparklog.protocol.cluster_messages import (
    AlterSecurityRecordsRequest,
    AlterSecurityRecordsResponse,
    SecurityRecordChange,
)
from sparklog.protocol.messages import Api
from sparklog.replication.cluster_image import Version
from sparklog.replication.controller.model import AlterSecurity
from sparklog.security.records import RecordChanges, RecordId
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.images import ImageFollower
from sparklog_broker.cluster.membership import Membership

CHANGE_TIMEOUT_S = 30.0


class RecordChanger:
    """Requests changes. Event-loop thread only."""

    def __init__(self, membership: Membership, controller: ControllerClient, images: ImageFollower) -> None:
        self._membership, self._controller, self._images = membership, controller, images

    async def change(self, changes: RecordChanges) -> None:
        """Change records; as `SecurityRecords.change`."""
        version = await self._controller.while_it_moves(lambda: self._ask(changes))
        if not await self._images.until_true(lambda image: image.version >= version, CHANGE_TIMEOUT_S):
            raise RequestTimedOutError("the change is made, but this broker does not have it yet")

    async def _ask(self, changes: RecordChanges) -> Version:
        if await self._controller.find():
            return await decide_records(self._membership, changes)
        request = AlterSecurityRecordsRequest([SecurityRecordChange(*name, v) for name, v in changes.items()])
        answer = await self._controller.request_unless_replaced(
            "security",
            Api.ALTER_SECURITY_RECORDS,
            request,
            AlterSecurityRecordsResponse,
            timeout_s=CHANGE_TIMEOUT_S,
        )
        return Version(answer.controller_epoch, answer.zxid)


async def decide_records(membership: Membership, changes: RecordChanges) -> Version:
    """Decide changes on the controller; return the version of an image that contains them. Raises as
    `SecurityRecords.change`.
    """
    await membership.ask(lambda token: AlterSecurity(token, changes))
    return membership.version


def changes_of(request: AlterSecurityRecordsRequest) -> dict[RecordId, bytes | None]:
    """Return the changes in another broker's request."""
    return {RecordId(change.kind, change.key): change.value for change in request.changes}
