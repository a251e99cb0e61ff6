"""One round of an appended table: every record becomes a row."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.fault_points import reach
from sparklog.lake.columns import topic_columns
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.rules import Plan, Span
from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.round_files import RoundFiles
from sparklog.lake.worker.topic_reader import TopicReader


class AppendRound:
    """The rows of one round as files, and their commit."""

    def __init__(
        self, log: TopicReader, info: TopicInfo, settings: LakeSettings, schema: pa.Schema, committer: DeltaCommitter
    ) -> None:
        """Create a round. `schema`: columns of the rows. `committer`: of the version that was checked."""
        self._log = log
        self._info = info
        self._settings = settings
        self.schema = schema
        self.files = RoundFiles(committer)
        self.spans: dict[int, Span] = {}
        """The offsets that were read, by partition."""

    def write(self, spans: Mapping[int, Span], *, may_stop: bool) -> bool:
        """Read the rows of all spans and write them to files. Returns True if a batch that was read belongs to a
        transaction."""
        has_transactions = False
        columns = topic_columns(self._info.schema, is_envelope=self._info.is_envelope)
        for partition, span in spans.items():
            self.spans[partition] = span
            if span.end > span.start:
                with self.files.writer(self.schema, self._settings.file_size_bytes, f"{partition:05d}") as writer:
                    if self._log.read(self._info, partition, span, columns, self.schema, writer.write):
                        has_transactions = True
                reach("lake.file-written")
        return has_transactions

    def commit(self, committer: DeltaCommitter, plan: Plan) -> None:
        """Commit the files on the version of `committer`. Raises CommitConflictError."""
        self.files.has_tried = True
        committer.commit(self.files.complete, [], plan.next_offsets, information=plan.information)

    def prepare_retry(self, base: int, newest: int) -> None:
        """Do nothing after a failed commit: the next attempt commits the same files."""
