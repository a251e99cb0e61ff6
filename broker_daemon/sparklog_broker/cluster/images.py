"""Following the controller's images: pulled one after the other, each applied before the next is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sparklog.errors import SparklogError
from sparklog.protocol.cluster_messages import MetadataFetchRequest, MetadataFetchResponse
from sparklog.protocol.messages import Api
from sparklog.replication.cluster_image import ClusterImage, Version
from sparklog.replication.image_codec import decode_delta, decode_image
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.membership import ImageNews, Membership

log = logging.getLogger(__name__)

WAIT_S = 10.0
ANSWER_S = 5.0
"""How much longer than it was asked to wait the controller may take."""
RETRY_S = 0.2


class ImageFollower:
    """`image` is what this broker goes by. It only becomes newer: what has a lower version is dropped."""

    def __init__(
        self,
        membership: Membership,
        controller: ControllerClient,
        broker_id: int,
        image: ClusterImage,
        apply: Callable[[ClusterImage], Awaitable[None]],
    ) -> None:
        """`apply` is called with every newer image, also with one that leaves some out. It raises nothing."""
        self._membership = membership
        self._controller = controller
        self._broker_id = broker_id
        self._apply = apply
        self.image = image
        self._newer = asyncio.Event()
        self._told = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._membership.may_take_images:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                news = await self._news()
            except SparklogError as e:
                if str(e) != self._told:
                    log.info("the controller's image cannot be had, which is tried again: %s", e)
                    self._told = str(e)
                await self._membership.until_published(RETRY_S)
                continue
            self._told = ""
            if self._membership.may_take_images:
                await self._take(news)

    async def until_true(self, condition: Callable[[ClusterImage], bool], timeout_s: float) -> bool:
        """Returns True when `condition` holds for the image that this broker goes by; False when it has not in
        time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.image):
                    await self._newer.wait()
        except TimeoutError:
            return False
        return True

    async def _news(self) -> ImageNews:
        known = self.image.version
        if await self._controller.find():
            return await self._membership.news(known, WAIT_S)
        request = MetadataFetchRequest(self._broker_id, *known, int(WAIT_S * 1_000))
        answer = await self._controller.request_unless_replaced(
            "image", Api.METADATA_FETCH, request, MetadataFetchResponse, timeout_s=WAIT_S + ANSWER_S
        )
        return ImageNews(
            None if answer.image is None else decode_image(answer.image),
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
