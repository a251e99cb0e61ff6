"""A tiered log that is written to, cut, retained and tiered, over clean stops, power cuts at any call to disk or store,
and a store that fails, compared with a list of its expected content."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparklog.errors import LogCorruptError
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.housekeeping.tier_run import Role, tier_log
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tiering.state import Phase
from sparklog.log.tools.repair import repair
from sparklog.testing._sim_files import PowerCut, SimFiles
from tests.support.logs import OWNER, SCHEMAS, ManualClock, batch, values
from tests.support.tiering import FailingStore, memory_store, stored_names

POLICY = st.fixed_dictionaries(
    {
        "remote.storage.enable": st.sampled_from([True, True, True, False]),
        "local.retention.bytes": st.sampled_from([-2, -1, 0, 0, 2_000]),
        "local.retention.ms": st.sampled_from([-2, -1, 0, 500]),
        "retention.ms": st.sampled_from([-1, -1, 2_000]),
        "retention.bytes": st.sampled_from([-1, -1, 6_000]),
        "file.delete.delay.ms": st.sampled_from([0, 300]),
        "segment.bytes": st.sampled_from([4096, 1 << 20]),
    }
)


class PoweredStore(FailingStore):
    """The broker's power is that of its disk: a call to the store may be its last."""

    files: SimFiles | None = None

    def _check(self, what: str, key: str) -> None:
        if self.files is not None:
            self.files.called(what, Path(key))
        super()._check(what, key)


class TieringModel(RuleBasedStateMachine):
    """`model`: the values by offset, from 0; `start`: the log start; `points`: the last checkpoint."""

    log: PartitionLog

    @initialize(policy=POLICY, seed=st.integers(0, 1 << 32))
    def begin(self, policy: dict[str, Any], seed: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tiering-model-"))
        self.store = PoweredStore(memory_store().url)
        self.store.files = self.files = SimFiles()
        self.rng, self.clock, self.policy = random.Random(seed), ManualClock(), policy
        self.model: list[bytes] = []
        self.start = self.serial = 0
        self.points: dict[str, Any] = {}
        self.open(clean=True)

    def open(self, *, clean: bool) -> None:
        self.cache = ReadCache(self.directory / "cache", 1 << 20)
        self.log = PartitionLog.open(
            Path("/sim") / OWNER.directory_name,
            OWNER,
            LogConfig.from_settings(self.policy),
            SCHEMAS.__getitem__,
            files=self.files,
            clock=self.clock,
            clean=clean,
            remote=RemoteAccess(self.store, self.cache),
            **self.points,
        )
        self.log.raise_high_watermark(self.log.log_end_offset)

    def open_or_repair(self) -> None:
        """A batch behind a head that never came to the disk is for its owner to judge."""
        try:
            self.open(clean=False)
        except LogCorruptError:
            directory = Path("/sim") / OWNER.directory_name
            assert repair(directory, self.files, dry_run=False, schema_of=SCHEMAS.__getitem__).changed
            self.files.kill()
            self.open(clean=False)

    def checkpoint(self) -> None:
        self.files.called("checkpoint", Path("checkpoint"))
        self.points = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point,
        }
        self.log.truncation.forget(self.log.truncation.count)

    def may_lose_power(self, cut_in: int | None, job: Any) -> None:
        """Does `job`; the power goes at the `cut_in`-th call of it."""
        self.files.cut_at = None if cut_in is None else len(self.files.calls) + cut_in
        on_disk = self.log.recovery_point
        try:
            job()
        except PowerCut:
            self.files.power_cut(self.rng)
            self.open_or_repair()
            assert self.log.log_end_offset >= on_disk, "what was on the disk, or in the store, is there"
            self.model = self.model[: self.log.log_end_offset]
        finally:
            self.files.cut_at = None
        self.start = self.log.log_start_offset

    @rule(count=st.integers(1, 3), size=st.integers(0, 1_500))
    def append(self, count: int, size: int) -> None:
        self.serial += 1
        value = b"%d." % self.serial + b"." * size
        self.log.appender.append(batch([self.clock.time_ms] * count, value=value))
        self.model += [value] * count
        self.log.raise_high_watermark(self.log.log_end_offset)

    @rule(flush=st.booleans())
    def roll(self, flush: bool) -> None:
        self.log.appender.roll()
        self.append(1, 0)
        if flush:
            self.log.flusher.flush()

    @rule(step_ms=st.sampled_from([1, 400, 1_500]))
    def time_passes(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms

    @rule(policy=POLICY)
    def alter(self, policy: dict[str, Any]) -> None:
        self.policy = policy
        self.log.reconfigure(LogConfig.from_settings(policy))

    def round(self) -> None:
        tier_log(self.log, self.store, self.clock, Role.LEADER)
        self.log.retention.remove_dropped()

    @rule(cut_in=st.none() | st.integers(1, 60))
    def tier(self, cut_in: int | None) -> None:
        self.may_lose_power(cut_in, self.round)

    @rule(fails_at=st.integers(0, 12))
    def tier_with_a_failing_store(self, fails_at: int) -> None:
        with self.store.failing_after(fails_at):
            self.round()

    @rule(cut_in=st.none() | st.integers(1, 20))
    def retain(self, cut_in: int | None) -> None:
        self.may_lose_power(cut_in, lambda: run_retention({OWNER.topic_partition: self.log}, self.checkpoint))

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start = self.log.retention.delete_records(max(self.start, int(share * len(self.model))))
        self.checkpoint()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        end = self.log.truncation.truncate_to(int(share * len(self.model)))
        assert end <= len(self.model)
        self.model = self.model[:end]
        self.start = self.log.log_start_offset
        self.log.raise_high_watermark(end)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.checkpoint()
        self.open(clean=True)

    @invariant()
    def what_is_kept_is_there_once(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, len(self.model))
        assert self.start <= self.log.local_log_start_offset <= len(self.model)
        found = [(o, v) for o, v in values(self.log) if o >= self.start]
        assert found == list(enumerate(self.model))[self.start :]

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        run_retention({OWNER.topic_partition: self.log}, self.checkpoint)
        self.round()
        self.round()
        state = self.log.tier.state
        cut = [copy for copy in state.orphans if copy.phase is Phase.DELETING and copy.segment is not None]
        assert state.orphans == cut, "only copies stay that other replicas may need"
        known = {s.prefix for s in state.finished} | {copy.started.prefix for copy in cut}
        assert {n.strip("/").rsplit("/", 1)[0] for n in stored_names(self.store)} == known
        self.log.close()
        for name in stored_names(self.store):
            self.store.file_system.rm_file(self.store.path(name.strip("/")))
        shutil.rmtree(self.directory)
