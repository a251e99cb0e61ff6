"""The driver of a stream that begins with a topic's history, as a process that is killed.

    python -m tests.campaigns.torture.seam_driver '<SeamJob as JSON>'

Each attempt at a batch leaves a file with the places and values of its rows, named after the batch.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from tests.campaigns.torture.spark_driver import serve

COLUMNS = ("_partition", "_offset", "n")


@dataclass(frozen=True)
class SeamJob:
    """The topic, and the places of checkpoint and output."""

    bootstrap_servers: str
    topic: str
    checkpoint: str
    output: str
    offsets_per_batch: int

    def as_argument(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def start(spark: Any, job: SeamJob, *, to_the_end: bool) -> Any:
    """The query; with `to_the_end` it ends when all that is there has been read."""

    def record(batch: Any, number: int) -> None:
        rows = batch.select(*COLUMNS).toArrow()
        unfinished = Path(job.output, f".{uuid4().hex}")
        pq.write_table(rows, unfinished)
        unfinished.rename(Path(job.output, f"{number:06d}-{uuid4().hex}.parquet"))

    read = spark.readStream.format("sparklog").option("sparklog.bootstrap.servers", job.bootstrap_servers)
    read = read.option("subscribe", job.topic).option("startingOffsets", "history").option("includeMetadata", "true")
    frame = read.option("maxOffsetsPerTrigger", str(job.offsets_per_batch)).load()
    write = frame.writeStream.foreachBatch(record).option("checkpointLocation", job.checkpoint)
    return (write.trigger(availableNow=True) if to_the_end else write).start()


def main() -> int:
    job = SeamJob(**json.loads(sys.argv[1]))
    return serve(lambda spark, to_the_end: start(spark, job, to_the_end=to_the_end))


if __name__ == "__main__":
    sys.exit(main())
