"""A broker's membership in the cluster: its registration, and its role as a possible controller.

All code here runs on the event loop. Events of ZooKeeper's client, which come on its own threads, are passed to the
loop first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from msgspec import Struct

from sparklog.environment.clock import MachineClock
from sparklog.errors import NotControllerError, SparklogError
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.broker_registration import BrokerRegistration
from sparklog.metadata.controller_session import ControllerSession
from sparklog.metadata.coordination import Coordination
from sparklog.metadata.store_history import StoreMark
from sparklog.replication.cluster_image import ClusterDelta, ClusterImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    Answer,
    ControllerConfig,
    Effect,
    Publish,
    Refuse,
    Request,
    Resign,
    Tick,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

CONTROLLER_TICK_S = 1.0
CHANGES_KEPT = 1_000
"""Number of kept changes. A broker whose image lacks more changes gets a whole image."""


class ImageNews(Struct, frozen=True):
    """The changes that a broker's image lacks, in order, or a whole image."""

    image: ClusterImage | None = None
    changes: tuple[tuple[Version, ClusterDelta], ...] = ()

    def __bool__(self) -> bool:
        return self.image is not None or bool(self.changes)


class Membership:
    """The membership of this broker. Event-loop thread only."""

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        clock: MachineClock,
        loop: asyncio.AbstractEventLoop,
        controller: ControllerConfig,
        *,
        on_registered: Callable[[int], None],
        on_duplicate: Callable[[], None],
        seen: Callable[[], StoreMark],
        cached_image: ClusterImage | None = None,
    ) -> None:
        """`on_registered` is called with the broker epoch after every registration, `on_duplicate` if another process
        is registered with this broker's id. `seen` and `cached_image` are as for ControllerSession.
        """
        self._loop = loop
        self._controller = Controller(controller)
        self._tokens: Iterator[int] = count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._changes: deque[tuple[Version | None, Version, ClusterDelta]] = deque(maxlen=CHANGES_KEPT)
        """(version before, version after, change). The version before is None for the first image after an election."""
        self._published = asyncio.Event()
        self._ticking: asyncio.TimerHandle | None = None
        now_ms = lambda: int(clock.monotonic_s() * 1_000)  # noqa: E731
        self._session = ControllerSession(
            coordination,
            broker_id,
            self._controller,
            now_ms,
            self._on_effect,
            call=self._call,
            seen=seen,
            cached_image=cached_image,
        )
        self.registration = BrokerRegistration(
            coordination,
            broker_id,
            now_ms,
            on_registered,
            on_duplicate,
            call=self._call,
            is_older=self._session.is_older,
        )

    def start(self, registration: znodes.Registration) -> None:
        """Register the broker, and stand for election. Both are repeated after losses of the connection or session."""
        self.registration.start(registration)
        self._session.start()
        self._tick()

    def retire(self) -> None:
        """Give up the controller's role before a stop, and end requests that wait for images."""
        self._session.retire()

    def evict(self, broker_id: int) -> None:
        """Let the brokers elect another controller, if the controller is the broker `broker_id`."""
        self._session.evict(broker_id)

    def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        for future in self._pending.values():
            future.cancel()

    def _call(self, step: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(step)

    @property
    def is_controller(self) -> bool:
        return self._controller.image is not None

    @property
    def older_store(self) -> str:
        """The reason why ZooKeeper's data are older than this broker's newest image, or belong to another cluster; ""
        if neither holds."""
        return self._session.older

    @property
    def may_take_images(self) -> bool:
        """False while the store is older than this broker's newest image, or has not been compared yet."""
        return not self._session.older and not self._session.is_comparing

    def controller_image(self) -> ClusterImage:
        """Return the stored image. Raises NotControllerError if this broker is not the controller."""
        if self._controller.image is None:
            raise NotControllerError("this broker is not the controller")
        return self._controller.image

    @property
    def version(self) -> Version:
        """Version of the stored image; the lowest version if this broker is not the controller."""
        image = self._controller.image
        return Version() if image is None else image.version

    async def ask(self, make: Callable[[int], Request]) -> Any:
        """Pass a request to this broker's controller, and return the answer. `make` creates the request for a token.
        Raises the controller's error, and NotControllerError if this broker is not the controller, or loses the role
        before the outcome is known.
        """
        token = next(self._tokens)
        answer = self._pending[token] = self._loop.create_future()
        try:
            self._session.handle(make(token))
            return await answer
        finally:
            del self._pending[token]

    async def news(self, version: Version, wait_s: float) -> ImageNews:
        """Return the changes since `version`; wait for changes for at most `wait_s`. Raises
        NotControllerError.
        """
        return await self._first(lambda: self._newer_than(version), wait_s)

    async def newer_image(self, version: Version, wait_s: float) -> ClusterImage | None:
        """Return this controller's image if it is newer than `version`. Wait for it for at most `wait_s`, then return
        None.

        The image of an election is not returned, because it has no brokers; the first write, which follows soon, adds
        them. Raises NotControllerError.
        """

        def find() -> ClusterImage | None:
            image = self.controller_image()
            return image if self._changes and image.version > version else None

        return await self._first(find, wait_s)

    async def _first(self, find: Callable[[], T], wait_s: float) -> T:
        """Call `find` after each publication until its result is true. After `wait_s`, return the last result."""
        deadline = self._loop.time() + wait_s
        while True:
            result = find()
            remaining_s = deadline - self._loop.time()
            if result or remaining_s <= 0:
                return result
            await self.until_published(remaining_s)

    async def until_published(self, timeout_s: float) -> None:
        """Wait until this broker, as the controller, publishes a newer image, or `timeout_s` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._published.wait()

    def _newer_than(self, version: Version) -> ImageNews:
        image = self.controller_image()
        if version >= image.version:
            return ImageNews()
        changes: list[tuple[Version, ClusterDelta]] = []
        reached = version
        for before, after, delta in self._changes:
            if before == reached:
                changes.append((after, delta))
                reached = after
        if reached == image.version:
            return ImageNews(None, tuple(changes))
        return ImageNews(image)

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Answer(token, result):
                self._settle(token, result, None)
            case Refuse(token, error):
                self._settle(token, None, error)
            case Publish(delta, image):
                before = self._changes[-1][1] if self._changes else None
                self._changes.append((before, image.version, delta))
                self._wake()
            case Resign():
                self._changes.clear()
                self._wake()

    def _settle(self, token: object, result: Any, error: SparklogError | None) -> None:
        pending = self._pending.get(token)  # type: ignore[call-overload]
        if pending is None or pending.done():
            return
        if error is not None:
            pending.set_exception(error)
        else:
            pending.set_result(result)

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(CONTROLLER_TICK_S, self._tick)
        if self.is_controller:
            self._session.handle(Tick())
        self._session.recheck()
        self.registration.recheck()
