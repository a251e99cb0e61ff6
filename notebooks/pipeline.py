"""A streaming pipeline for spark-submit: copies a topic to another, with what you want done to it in `transform`.

    spark-submit notebooks/pipeline.py --bootstrap-servers 127.0.0.1:9292 --from trips --to long-trips \\
        --where "minutes > 30"

Both topics exist beforehand; the target has the columns that the query yields. The checkpoint remembers how far the
pipeline has read: run it again and it goes on there. Without --continuous it takes what is there and stops.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession

# Executors must run the Python that has sparklog: this one, unless the cluster says otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def transform(source: DataFrame, where: str | None, select: str | None) -> DataFrame:
    """What the pipeline does to the records; put yours here."""
    rows = source.where(where) if where else source
    return rows.selectExpr(*select.split(";")) if select else rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Copy a sparklog topic to another through Spark Structured Streaming.")
    parser.add_argument("--bootstrap-servers", default=os.environ.get("SPARKLOG_BOOTSTRAP_SERVERS", "127.0.0.1:9292"))
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC", help="topic to read")
    parser.add_argument("--to", dest="target", required=True, metavar="TOPIC", help="topic to write")
    parser.add_argument("--where", metavar="SQL", help='keep these records, for example "minutes > 30"')
    parser.add_argument(
        "--select", metavar="SQL;SQL", help='columns to write, for example "zone;minutes * 60 AS seconds"'
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="where the progress is kept (default: checkpoints/FROM-to-TO)"
    )
    parser.add_argument("--continuous", action="store_true", help="go on until stopped")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName(f"{arguments.source} to {arguments.target}").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("sparklog")
        .option("sparklog.bootstrap.servers", arguments.bootstrap_servers)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    checkpoint = arguments.checkpoint or f"checkpoints/{arguments.source}-to-{arguments.target}"
    writer = (
        transform(source, arguments.where, arguments.select)
        .writeStream.format("sparklog")
        .option("sparklog.bootstrap.servers", arguments.bootstrap_servers)
        .option("topic", arguments.target)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"processingTime": "1 second"} if arguments.continuous else {"availableNow": True}
    query = writer.trigger(**trigger).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    print(f"{arguments.source} to {arguments.target}: {rows:,} records read (checkpoint: {checkpoint})")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
