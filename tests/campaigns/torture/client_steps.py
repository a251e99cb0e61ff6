"""The steps of clients and of Spark's sink at which campaigns kill them."""

from __future__ import annotations

SINK_STEPS = (
    "sink.before-join",
    "sink.after-join",
    "sink.after-write",
    "sink.before-commit",
    "sink.after-commit",
    "sink.before-abort",
)

PRODUCER_STEPS = ("producer.before-send", "producer.after-send", "producer.before-end", "producer.after-end")
CLIENT_STEPS = {
    "producer": PRODUCER_STEPS[:2],
    "transactional": PRODUCER_STEPS,
    "pipeline": PRODUCER_STEPS,
    "member": ("consumer.before-commit", "consumer.after-commit"),
}
