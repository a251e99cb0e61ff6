"""The broker's numbers under sparklog's names. They supplement the numbers under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from prometheus_client.core import Metric

from sparklog.histogram import Histogram
from sparklog.protocol.gateway import DROPPED_FIELDS, REFUSED_BATCHES, REFUSED_RECORDS
from sparklog.version import __version__
from sparklog_broker.counters.requests import RequestCounters, error_name
from sparklog_broker.counters.traffic import Traffic
from sparklog_broker.metrics.families import (
    MetricInfo,
    counter,
    gauge,
    histogram,
    one_counter,
    one_gauge,
)
from sparklog_broker.metrics.partition_rows import Sums
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.metrics.watched import MetricSources

PHASES = ("queue", "handle", "wait", "send")


def process_families(ready: bool, loop_delay: Histogram) -> Iterator[Metric]:
    """Yield the families of the process, which a broker also shows during its recovery."""
    yield gauge(MetricInfo("sparklog_build_info", "The version that runs."), [({"version": __version__}, 1)])
    yield one_gauge("sparklog_ready", "1 if the broker is ready: recovered, and not stopping.", ready)
    described = MetricInfo("sparklog_event_loop_delay_seconds", "Delay of the event loop's timers.")
    yield histogram(described, [({}, loop_delay.counts)])


def request_families(requests: RequestCounters, slices: Slices) -> Iterator[Metric]:
    counted = list(requests.items())
    for name, doc, field in (
        ("sparklog_requests", "Requests that have arrived.", "requests"),
        ("sparklog_request_bytes", "Bytes of requests, without the length prefixes.", "request_bytes"),
        ("sparklog_response_bytes", "Bytes of answers.", "response_bytes"),
    ):
        value = attrgetter(field)
        yield counter(
            MetricInfo(name, doc), (({"api": api}, value(counters)) for api, counters in slices.each(counted))
        )
    yield counter(
        MetricInfo("sparklog_request_errors", "Errors in responses, of whole requests and of single partitions."),
        (
            ({"api": api, "error": error_name(code)}, count)
            for api, counters in slices.each(counted)
            for code, count in sorted(counters.errors.items())
        ),
    )
    described = MetricInfo(
        "sparklog_request_seconds", "Latency of a request, from its last byte to the last byte of the response."
    )
    yield histogram(described, (({"api": api}, counters.total.counts) for api, counters in slices.each(counted)))
    yield histogram(
        MetricInfo(
            "sparklog_request_phase_seconds",
            "Latency of a request by phase: queue (for a handler), handle, wait (for records or replicas), send.",
        ),
        (
            ({"api": api, "phase": phase}, getattr(counters, phase).counts)
            for api, counters in counted
            for phase in slices.each(PHASES)
        ),
    )
    yield one_counter(
        "sparklog_slow_requests", "Requests that took longer than slow.request.threshold.ms.", requests.slow_count
    )


def topic_families(traffic: Traffic, sums: dict[str, Sums], slices: Slices) -> Iterator[Metric]:
    described = MetricInfo(
        "sparklog_topic_records_out", "Records sent in fetch responses, counted by offsets: removed records count, too."
    )
    yield counter(described, (({"topic": t}, n.records_out) for t, n in slices.each(traffic.items())))
    described = MetricInfo(
        "sparklog_topic_located_bytes", "Bytes of the whole batches located for clients that map files."
    )
    yield counter(described, (({"topic": t}, n.located_bytes) for t, n in slices.each(traffic.items())))
    for name, doc, field in (
        (
            "sparklog_topic_undecided_records",
            "Records between the last stable offset and the high watermark.",
            "undecided",
        ),
        ("sparklog_topic_segments", "Segments.", "segments"),
        ("sparklog_topic_producers", "Producers that partitions remember.", "producers"),
        ("sparklog_topic_remote_bytes", "Bytes of batches in the object store without a local copy.", "remote_bytes"),
        ("sparklog_topic_offline_partitions", "Offline partitions.", "offline"),
    ):
        value = attrgetter(field)
        yield gauge(MetricInfo(name, doc), (({"topic": t}, value(s)) for t, s in slices.each(sums.items())))


def server_families(watched: MetricSources) -> Iterator[Metric]:
    server, memory, unread = watched.server, watched.memory, watched.server.unread
    yield one_gauge(
        "sparklog_time_seconds", "Time of the broker's clock, in seconds since 1970.", watched.clock.now_ms() / 1000
    )
    yield one_gauge("sparklog_connections", "Open connections.", server.connection_count)
    yield one_counter("sparklog_connections_accepted", "Connections accepted.", server.accepted_count)
    yield one_counter(
        "sparklog_connections_refused", "Connections refused with an error, because of a limit.", server.refused_count
    )
    yield one_counter(
        "sparklog_kafka_gateway_refused_batches",
        "Batches of Kafka's clients that the gateway has refused with INVALID_RECORD; its log has reasons.",
        watched.children.count(REFUSED_BATCHES),
    )
    yield one_counter(
        "sparklog_kafka_gateway_refused_records",
        "Records of Kafka's clients that do not fit their topics, in refused topics (kafka.refused.records).",
        watched.children.count(REFUSED_RECORDS),
    )
    yield one_counter(
        "sparklog_kafka_gateway_dropped_fields",
        "Fields of records that the newest schema of the topic does not have; the gateway's log has their names.",
        watched.children.count(DROPPED_FIELDS),
    )
    authentication = watched.authentication
    yield counter(
        MetricInfo("sparklog_authentications", "Successful authentications, by mechanism."),
        [({"mechanism": name}, count) for name, count in authentication.succeeded.items()],
    )
    yield counter(
        MetricInfo("sparklog_reauthentications", "Successful re-authentications on an open connection (KIP-368)."),
        [({"mechanism": name}, count) for name, count in authentication.repeated.items()],
    )
    yield counter(
        MetricInfo("sparklog_authentication_failures", "Failed authentications, by reason."),
        [({"reason": name}, count) for name, count in authentication.failed.items()],
    )
    yield one_gauge(
        "sparklog_request_memory_used_bytes", "Memory held by requests and unread responses.", memory.used_bytes
    )
    yield one_gauge("sparklog_request_memory_limit_bytes", "queued.max.request.bytes.", memory.limit_bytes)
    yield one_gauge("sparklog_request_memory_waiting", "Connections that wait for memory.", memory.waiting_count)
    yield one_counter(
        "sparklog_half_requests_cut",
        "Connections closed for a slow request while other requests waited for memory.",
        server.partial_requests.cut_count,
    )
    yield one_gauge(
        "sparklog_unread_answer_bytes", "Memory held by responses that clients have not read.", unread.held_bytes
    )
    yield one_gauge(
        "sparklog_unread_answer_files", "File ranges held by responses that clients have not read.", unread.held_files
    )
    throttled = dict(watched.throttling.throttled)
    yield counter(
        MetricInfo("sparklog_throttled_requests", "Throttled requests, by quota."),
        [({"quota": str(key)}, count) for key, (count, _) in throttled.items()],
    )
    yield counter(
        MetricInfo("sparklog_throttle_seconds", "Total throttle time of connections, by quota."),
        [({"quota": str(key)}, total_ms / 1_000) for key, (_, total_ms) in throttled.items()],
    )
    purgatories = {"fetch": watched.partitions.fetches, "produce": watched.partitions.produces}
    yield gauge(
        MetricInfo("sparklog_purgatory_waiting", "Requests waiting in a purgatory, by purgatory."),
        [({"purgatory": name}, purgatory.waiting_count) for name, purgatory in purgatories.items()],
    )
    yield counter(
        MetricInfo("sparklog_purgatory_waits", "Completed waits, by outcome."),
        [
            ({"purgatory": name, "outcome": outcome.value}, count)
            for name, purgatory in purgatories.items()
            for outcome, count in purgatory.ended.items()
        ],
    )
    yield gauge(
        MetricInfo("sparklog_io_queued_jobs", "Jobs waiting for an I/O thread."),
        [({"thread": str(i)}, length) for i, length in enumerate(watched.io.queue_lengths)],
    )


def disk_families(watched: MetricSources) -> Iterator[Metric]:
    directories = [({"directory": str(d.path)}, d.health) for d in watched.storage.logs.directories.all]
    described = MetricInfo("sparklog_fsync_seconds", "Duration of one fsync of a file.")
    yield histogram(described, [(labels, health.syncs.counts) for labels, health in directories])
    described = MetricInfo("sparklog_fsync_failures", "Fsyncs that failed.")
    yield counter(described, [(labels, health.sync_failures) for labels, health in directories])
    described = MetricInfo("sparklog_log_directory_failed", "1 if a log directory has failed.")
    yield gauge(described, [(labels, health.failure is not None) for labels, health in directories])
    flushing = watched.background.flushing
    described = MetricInfo(
        "sparklog_flush_seconds", "Duration of a background flush of all appended data (log.flush.interval.ms)."
    )
    yield histogram(described, [({}, flushing.rounds.counts)])


def background_families(watched: MetricSources) -> Iterator[Metric]:
    background = watched.background
    cleaner, tier, retention = background.cleaner.counters, background.tierer.counters, background.retention.counters
    for name, doc, value in (
        ("sparklog_cleaner_runs", "Logs compacted.", cleaner.runs),
        ("sparklog_cleaner_failures", "Compactions that failed.", cleaner.failures),
        ("sparklog_cleaner_read_bytes", "Bytes of batches that compaction has read.", cleaner.read_bytes),
        ("sparklog_cleaner_written_bytes", "Bytes of batches that compaction has kept.", cleaner.written_bytes),
        ("sparklog_cleaner_removed_records", "Records removed by compaction.", cleaner.removed_records),
        ("sparklog_cleaner_busy_seconds", "Time that compaction took.", cleaner.busy_s),
        ("sparklog_tier_rounds", "Rounds of tiering.", tier.rounds),
        ("sparklog_tier_failures", "Partitions whose round failed.", tier.failures),
        ("sparklog_tier_copied_segments", "Segments copied to the object store.", tier.copied),
        ("sparklog_tier_released_segments", "Tiered segments whose local files were deleted.", tier.released),
        ("sparklog_tier_deleted_segments", "Segments deleted from the object store.", tier.deleted),
        ("sparklog_retention_runs", "Runs of retention.", retention.runs),
        ("sparklog_retention_raised_log_starts", "Advances of a log start offset by deletion.", retention.raised),
        (
            "sparklog_retention_removed_segments",
            "Segments whose files were unlinked.",
            retention.removed_segments + background.flushing.removed_segments,
        ),
    ):
        yield one_counter(name, doc, value)
    yield one_gauge(
        "sparklog_cleaner_failing_logs",
        "Logs whose compaction failed, and waits or has been given up.",
        cleaner.failing,
    )
    yield one_gauge("sparklog_tier_failing_partitions", "Partitions whose last tiering attempt failed.", tier.failing)
    cache = watched.storage.remote.cache
    yield one_gauge(
        "sparklog_tier_cache_bytes", "Bytes in the read cache of the object store.", cache.held_bytes if cache else 0
    )
