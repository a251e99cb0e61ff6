"""Pulls the controller's images one by one, and applies each before the next request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError, SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import MetadataFetchRequest, MetadataFetchResponse
from sparklog.replication.cluster_image import ClusterImage, Version
from sparklog.replication.image_codec import PackedImage, decode_delta, unpack_image
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.membership import ImageNews, Membership

log = logging.getLogger(__name__)

WAIT_S = 10.0
ANSWER_S = 5.0
"""Time in s added to the wait of a request, after which the controller counts as unresponsive."""
RETRY_S = 0.2
REACH_S = 30.0
CATCH_UP_S = 2.0
"""Longest wait, in s, until the image of the controller's broker reaches the stored one."""


class ImageFollower:
    """Pulls and applies images. `image` is the newest applied one; older versions are dropped."""

    def __init__(
        self,
        membership: Membership,
        controller: ControllerClient,
        broker_id: int,
        image: ClusterImage,
        apply: Callable[[ClusterImage], Awaitable[None]],
    ) -> None:
        """`image`: the image that was read at the start. `apply` is called with newer images, in order; versions may be
        skipped. It must not raise."""
        self._membership = membership
        self._controller = controller
        self._broker_id = broker_id
        self._apply = apply
        self.image = replace(image, version=Version())
        """The newest applied image. The first one lacks the brokers: its version makes the controller send all."""
        self._newer = asyncio.Event()
        self.has_lost_controller = False
        """True if the last request to the controller has failed, because the controller did not answer."""
        self._failures = 0
        """Failed attempts since the last success."""
        self._last_error = ""
        self._logged_error = ""

    async def run(self) -> None:
        """Pull and apply images, until cancelled."""
        while True:
            if not self._membership.may_take_images:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                news = await self._news()
            except SparklogError as e:
                self.has_lost_controller = isinstance(e, BrokerNotAvailableError | RequestTimedOutError)
                self._note_failure(str(e))
                await self._membership.until_published(RETRY_S)
                continue
            self.has_lost_controller = False
            self._failures, self._last_error, self._logged_error = 0, "", ""
            if self._membership.may_take_images:
                await self._take(news)

    def _note_failure(self, error: str) -> None:
        """Log the second failure in a row, because a start and a stop fail once each; and each other error that comes
        twice in a row."""
        self._failures += 1
        if (self._failures == 2 or error == self._last_error) and error != self._logged_error:
            log.info("fetching the controller's metadata image failed and is retried: %s", error)
            self._logged_error = error
        self._last_error = error

    async def until_true(self, condition: Callable[[ClusterImage], bool], timeout_s: float) -> bool:
        """Wait until `condition` is true for the broker's image. Returns False after `timeout_s`."""
        if condition(self.image):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.image):
                    await self._newer.wait()
        except TimeoutError:
            return False
        return True

    async def decides(self) -> bool:
        """Return True if this broker is the controller, and its image has all changes that the controller has stored.
        Raises NotControllerError, BrokerNotAvailableError."""
        if not await self._controller.find():
            return False
        version = self._membership.controller_image().version
        if not await self.until_true(lambda image: image.version >= version, CATCH_UP_S):
            raise BrokerNotAvailableError("this broker has become the controller and still reads the metadata")
        return True

    async def reach(self, version: Version) -> None:
        """Return when this broker's image has `version`, that of a stored change. Raises RequestTimedOutError."""
        if not await self.until_true(lambda image: image.version >= version, REACH_S):
            raise RequestTimedOutError("the change is made, but this broker's metadata lag behind: ask another broker")

    async def _news(self) -> ImageNews:
        version = self.image.version
        if await self._controller.find():
            return ImageNews(await self._membership.newer_image(version, WAIT_S))
        request = MetadataFetchRequest(self._broker_id, *version, int(WAIT_S * 1_000))
        answer = await self._controller.request_unless_replaced(
            "image", Api.METADATA_FETCH, request, MetadataFetchResponse, timeout_s=WAIT_S + ANSWER_S
        )
        return ImageNews(
            None if answer.image is None else unpack_image(PackedImage(answer.image, answer.image_bytes)),
            tuple((Version(c.controller_epoch, c.zxid), decode_delta(c.delta)) for c in answer.changes),
        )

    async def _take(self, news: ImageNews) -> None:
        image = self.image
        if news.image is not None and news.image.version > image.version:
            image = news.image
        for version, delta in news.changes:
            image = image.apply(delta, version)
        if image is self.image:
            return
        await self._apply(image)
        self.image = image
        self._newer.set()
        self._newer = asyncio.Event()
