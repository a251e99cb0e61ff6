"""A broker's place among the live ones: an ephemeral node `/brokers/ids/<id>`, whose czxid is the broker epoch.

| what is found | what is done |
|---|---|
| no node | created; its czxid is the epoch |
| a node of the own session | the answer to its creation was lost: it is ours |
| a node of an earlier session of this process | deleted, made anew (KAFKA-7165): it would go when that session ends |
| a node of another process | `on_duplicate`; waited for, a former life's goes with its session |
| an older store than the broker has seen (`store_history`) | the broker keeps its epoch, as while ZooKeeper is away |

From SUSPENDED on a timer runs: when the session may have ended the broker is not sure of its place any more
(`is_certain`) and begins to lead nothing. What it leads it may go on leading: nothing is committed without those who
could be elected in its place.
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
    """For a broker that compares no histories."""
    yield from ()
    return False


class BrokerRegistration:
    """`on_registered(broker_epoch)` after every registration; `call` as in ControllerSession."""

    def __init__(
        self,
        coordination: Coordination,
        broker_id: int,
        registration: znodes.Registration,
        now_ms: Callable[[], int],
        on_registered: Callable[[int], None],
        on_duplicate: Callable[[], None] = lambda: None,
        *,
        call: Callable[[Callable[[], None]], None] = lambda step: step(),
        is_older: Callable[[], Steps] = _never_older,
    ) -> None:
        """`is_older`: steps that return True if the store is older than what the broker has seen."""
        self._zk = coordination
        self._path = f"{znodes.BROKER_IDS}/{broker_id}"
        self._registration = registration
        self._now_ms = now_ms
        self._on_registered = on_registered
        self._on_duplicate = on_duplicate
        self._call = call
        self._is_older = is_older
        self._is_refused = False
        """True if the broker has not registered because the store is older."""
        self._has_ended = False
        """True from the end of the session on, until the broker registers again."""
        self._suspended_ms: int | None = None
        self._is_registering = False
        self._is_asked_again = False
        """Somebody wanted to register while that was under way, on a connection that may have broken since."""
        self.broker_epoch = NO_EPOCH

    def start(self) -> None:
        self._zk.listen(lambda state: self._call(lambda: self._on_state(state)))
        self._register()

    @property
    def lives(self) -> Lives:
        """Those before the present one of which everything is there."""
        return Lives(self._registration.clean_epochs, self._registration.flushed_epochs)

    def is_certain(self) -> bool:
        """Whether the session cannot have ended yet."""
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

    def look_again(self) -> None:
        """Register if the store that was refused is another one now."""
        if self._is_refused and self._is_unregistered:
            self._register()

    def _begin_life(self) -> None:
        """The session has ended, and the process lives: what it has in memory and in caches is there."""
        self._has_ended = False
        if self.broker_epoch != NO_EPOCH:
            lives = self.lives.then(self.broker_epoch)
            self._registration = replace(self._registration, clean_epochs=lives.clean, flushed_epochs=lives.flushed)
        self.broker_epoch = NO_EPOCH

    def _register(self) -> None:
        if self._is_registering:
            self._is_asked_again = True
        else:
            self._is_registering, self._is_asked_again = True, False
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
                    node = yield self._zk.get(self._path, lambda: self._call(self._again))
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
            if self._is_asked_again and self._is_unregistered:
                self._call(self._again)

    def _again(self) -> None:
        if self._is_unregistered:
            self._register()
