"""A broker whose partitions hold files from elsewhere: each partition one hostile case between honest rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sparklog
from sparklog.format.checkpoint import PARTITION_FILE
from tests.campaigns.fuzz.cases import ENVELOPE_ID, TYPED_ID, Case
from tests.campaigns.fuzz.planted import plant
from tests.golden.make_golden import TYPED_SCHEMA
from tests.system.broker_process import BrokerProcess, create_topic

TOPIC_OF = {ENVELOPE_ID: "envelope", TYPED_ID: "typed"}
KEEP_FOR_EVER = "topic.retention.ms = -1\n"  # the rows' timestamps are years old
COMPACTED_SETTINGS = "log.cleaner.backoff.ms = 50\n"


class PlantedBroker:
    """Makes the topics, stops, plants, starts again. `place_of(case)` says where a case lies."""

    def __init__(self, work_dir: Path, cases: Sequence[Case], *, compacted: bool = False) -> None:
        self._work_dir = work_dir
        self._cases = {s: [c for c in cases if c.form.schema_id == s] for s in TOPIC_OF}
        data_dir = work_dir / "data"
        settings = KEEP_FOR_EVER + (COMPACTED_SETTINGS if compacted else "")
        first = BrokerProcess(data_dir, settings=settings, work_dir=work_dir)
        more: dict[str, Any] = {}
        if compacted:
            more["configs"] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        with first.connect() as client:
            for schema_id, topic in TOPIC_OF.items():
                typed = {"arrow_schema": bytes(TYPED_SCHEMA.serialize()), "timestamp_column": "at"}
                keys = {"key_columns": ["whole", "text"]} if compacted else {}
                own = (typed | keys) if schema_id == TYPED_ID else {}
                create_topic(client, topic, max(1, len(self._cases[schema_id])), **own, **more)
        assert first.stop() == 0
        for schema_id, topic in TOPIC_OF.items():
            for partition, case in enumerate(self._cases[schema_id]):
                directory = data_dir / f"{topic}-{partition}"
                topic_id = json.loads((directory / PARTITION_FILE).read_bytes())["topic_id"]
                for file in directory.iterdir():
                    if file.name != PARTITION_FILE:
                        file.unlink()
                plant(
                    directory,
                    schema_id,
                    case.stamped(),
                    topic=topic,
                    topic_id=topic_id,
                    partition=partition,
                    sealed=case.seed % 2 == 0,
                )
        self.broker = BrokerProcess(data_dir, settings=settings, work_dir=work_dir)

    def place_of(self, case: Case) -> tuple[str, int]:
        """Topic and partition."""
        return TOPIC_OF[case.form.schema_id], self._cases[case.form.schema_id].index(case)

    @cached_property
    def offline(self) -> dict[tuple[str, int], str]:
        """Topic and partition of those offline since the start, and the reason in the broker's log; "" for those that
        have no leader, without a reason."""
        # the start tells it in the log first; for a moment the metadata still have the leader from before
        found = re.findall(r"ERROR .*: partition ((\S+)-(\d+)) is offline: (.*/\1/.*)", self.broker.stderr)
        offline = {(topic, int(partition)): reason for _, topic, partition, reason in found}
        with sparklog.Admin(self.broker.address) as admin:
            for topic in TOPIC_OF.values():
                leaderless = [p.partition for p in admin.describe_topic(topic).partition_details if p.leader < 0]
                offline = {(topic, p): "" for p in leaderless} | offline
        return offline

    def problem(self) -> str:
        """Return the broker's fault; "" if there is none."""
        code = self.broker.process.poll()
        if code is not None:
            return f"the broker ended with {code}:\n{self.broker.stderr[-4000:]}"
        at = self.broker.stderr.find("Traceback")
        return (
            f"a traceback in the broker's log:\n{self.broker.stderr[max(0, at - 500) : at + 4000]}" if at >= 0 else ""
        )

    def stop(self) -> None:
        self.broker.stop()
