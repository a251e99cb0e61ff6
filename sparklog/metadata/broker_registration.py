"""The registration of a live broker: an ephemeral node `/brokers/ids/<id>`, whose czxid is the broker epoch.

| state of the store | action |
|---|---|
| no node | the broker creates the node; its czxid is the epoch |
| a node of this session | the reply to its creation was lost: the broker keeps the node |
| a node of an earlier session of this process | the broker deletes the node and creates another (KAFKA-7165) |
| a node of another process | the broker calls `on_duplicate` and waits until the other process's session ends |
| older than this broker's newest image (`store_history`) | the broker keeps its epoch, as in an outage of ZooKeeper |

A timer runs while the session is SUSPENDED. When the session can have ended, the broker is not certain of its
registration (`is_certain`) and takes no new leaderships. The broker goes on leading its partitions: a record is
committed only when the replicas that could be elected in the broker's place have the record.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sparklog.log.directories.broker_epoch import Lives
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    ConnectionLossError,
    Coordination,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SessionState,
    Steps,
    drive,
)
from sparklog.replication.cluster_image import NO_EPOCH


def _never_older() -> Steps:
    """Return False: the default of `is_older`, without a comparison of histories."""
    yield from ()
    return False


class BrokerRegistration:
    """Keeps this broker registered in the store.

    `on_registered(broker_epoch)` is called after every registration, `on_duplicate()` if another process has registered
    the broker id. `call` runs a step on the thread of this object.
    """

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        now_ms: Callable[[], int],
        on_registered: Callable[[int], None],
        on_duplicate: Callable[[], None] = lambda: None,
        *,
        call: Callable[[Callable[[], None]], None] = lambda step: step(),
        is_older: Callable[[], Steps] = _never_older,
    ) -> None:
        """`is_older`: steps that return True if the store is older than the newest image of this broker."""
        self._zk = coordination
        self._path = f"{znodes.BROKER_IDS}/{broker_id}"
        self._registration = znodes.Registration("")
        """The content of the broker's node; without addresses before `start`."""
        self._now_ms = now_ms
        self._on_registered = on_registered
        self._on_duplicate = on_duplicate
        self._call = call
        self._is_older = is_older
        self._is_refused = False
        """True if the broker did not register because the store was older than the broker's newest image."""
        self._has_ended = False
        """True from the end of the session on, until the broker registers again."""
        self._suspended_ms: int | None = None
        self._is_registering = False
        self._must_retry = False
        """True if a registration was requested during another registration, which can fail with its connection."""
        self.broker_epoch = NO_EPOCH

    def start(self, registration: znodes.Registration) -> None:
        """Register the broker, and again after each end of the session."""
        self._registration = registration
        self._zk.listen(lambda state: self._call(lambda: self._on_state(state)))
        self._register()

    @property
    def lives(self) -> Lives:
        """The earlier lives (registrations) of which this broker still has all records, or all fsynced records."""
        return Lives(self._registration.clean_epochs, self._registration.flushed_epochs)

    def is_certain(self) -> bool:
        """True if the broker is registered and its session cannot have ended yet."""
        if self.broker_epoch == NO_EPOCH or self._has_ended:
            return False
        return self._suspended_ms is None or self._now_ms() - self._suspended_ms < self._zk.session_timeout_ms

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            self._suspended_ms = self._now_ms()
        elif state is SessionState.LOST:
            self._has_ended = True
        else:
            self._suspended_ms = None
            if self._is_unregistered:
                self._register()

    @property
    def _is_unregistered(self) -> bool:
        return self.broker_epoch == NO_EPOCH or self._has_ended

    def recheck(self) -> None:
        """Try to register again, if the last attempt found the store older than this broker's newest image."""
        if self._is_refused:
            self._register()

    def _begin_life(self) -> None:
        """Begin a life after the end of a session. The process continues, so the ended life lost no records."""
        self._has_ended = False
        if self.broker_epoch != NO_EPOCH:
            lives = self.lives.then(self.broker_epoch)
            self._registration = replace(self._registration, clean_epochs=lives.clean, flushed_epochs=lives.flushed)
        self.broker_epoch = NO_EPOCH

    def _register(self) -> None:
        if self._is_registering:
            self._must_retry = True
        else:
            self._is_registering, self._must_retry = True, False
            drive(self._steps(), self._call)

    def _steps(self) -> Steps:
        try:
            self._is_refused = yield from self._is_older()
            if self._is_refused:
                return
            if self._has_ended:
                self._begin_life()
            yield from znodes.make_base(self._zk)
            while True:
                try:
                    node = yield self._zk.create(self._path, znodes.encode(self._registration), ephemeral=True)
                    break
                except NodeExistsError:
                    node = yield self._zk.get(self._path, lambda: self._call(self._retry))
                if node is None:
                    continue
                if node.owner == self._zk.session_id:
                    break
                if znodes.decode(node.data, znodes.Registration).incarnation != self._registration.incarnation:
                    self._on_duplicate()
                    return
                try:
                    yield self._zk.delete(self._path, node.version)
                except NoNodeError:
                    continue
            self.broker_epoch = node.czxid
            self._on_registered(node.czxid)
        except (ConnectionLossError, SessionExpiredError):
            return
        finally:
            self._is_registering = False
            if self._must_retry:
                self._call(self._retry)

    def _retry(self) -> None:
        if self._is_unregistered:
            self._register()
