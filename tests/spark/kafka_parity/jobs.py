"""Spark jobs against either system, with results in a comparable form."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.spark.kafka_parity.systems import System, unused_name

WAIT_S = 120
NO_ERROR = "no error"


def texts(*ranges: range) -> list[str]:
    """The numbers as the values of records, sorted as values are."""
    return sorted(str(n) for r in ranges for n in r)


def values_of(rows: Sequence[Any]) -> list[str]:
    """The values of rows as text, sorted; a null as `null`."""
    return sorted("null" if r.value is None else bytes(r.value).decode() for r in rows)


def values(frame: Any) -> list[str]:
    """Runs an action; the values, sorted."""
    return values_of(frame.select("value").collect())


def said(error: BaseException, words: Sequence[str]) -> str:
    """Which of `words` the error says, else the line that says most."""
    text = str(error)
    for phrase in words:
        if phrase.lower() in text.lower():
            return phrase
    lines = text.strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if re.search(r"\w(Exception|Error): ", line)), lines[0])


class Collected:
    """A foreachBatch sink that keeps the rows of every micro-batch on the driver."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.batches.append(frame.collect())

    @property
    def rows(self) -> list[Any]:
        return [row for rows in self.batches for row in rows]

    def values(self) -> list[str]:
        return values_of(self.rows)

    def values_by_batch(self) -> list[list[str]]:
        """The values of the batches that had any."""
        return [values_of(rows) for rows in self.batches if rows]


class Jobs:
    """Reads, writes and queries against `system`."""

    def __init__(self, spark: Any, system: System, directory: Path) -> None:
        self.spark = spark
        self.system = system
        self._directory = directory

    def checkpoint(self) -> Path:
        """A place that no other query uses."""
        return self._directory / unused_name("checkpoint")

    def _options(self, topic: str | None, options: dict[str, Any]) -> dict[str, Any]:
        servers = {"kafka.bootstrap.servers": self.system.bootstrap_servers}
        given = servers | ({"subscribe": topic} if topic is not None else {}) | options
        return {name: value for name, value in given.items() if value is not None}

    # -- reading

    def batch(self, topic: str | None = None, **options: Any) -> Any:
        """spark.read; an option that is None is left out."""
        return self.spark.read.format(self.system.name).options(**self._options(topic, options)).load()

    def stream(self, topic: str | None = None, **options: Any) -> Any:
        """spark.readStream, likewise."""
        return self.spark.readStream.format(self.system.name).options(**self._options(topic, options)).load()

    def run(self, frame: Any, checkpoint: Path | None = None, **trigger: Any) -> Collected:
        """Runs a stream to its end, with Trigger.AvailableNow if nothing else is said."""
        collected = Collected()
        writer = frame.writeStream.foreachBatch(collected).trigger(**(trigger or {"availableNow": True}))
        query = writer.option("checkpointLocation", str(checkpoint or self.checkpoint())).start()
        try:
            assert query.awaitTermination(WAIT_S), query.lastProgress
        finally:
            query.stop()
        return collected

    @contextlib.contextmanager
    def running(self, frame: Any, checkpoint: Path | None = None) -> Iterator[Running]:
        """A query that goes on until the end of the block."""
        collected = Collected()
        writer = frame.writeStream.foreachBatch(collected).trigger(processingTime="50 milliseconds")
        query = writer.option("checkpointLocation", str(checkpoint or self.checkpoint())).start()
        try:
            yield Running(query, collected)
        finally:
            query.stop()

    # -- writing

    def write(self, frame: Any, topic: str | None = None, mode: str | None = "append", **options: Any) -> None:
        """df.write; `topic` as the option."""
        given = self._options(None, {"topic": topic} | options)
        writer = frame.write.format(self.system.name).options(**given)
        (writer if mode is None else writer.mode(mode)).save()

    def writing(self, frame: Any, topic: str | None = None, mode: str = "append", **options: Any) -> Any:
        """A streaming write, still to be started."""
        given = self._options(None, {"topic": topic, "checkpointLocation": str(self.checkpoint())} | options)
        return frame.writeStream.format(self.system.name).outputMode(mode).options(**given)

    def finish(self, writer: Any) -> Any:
        """Starts a streaming write with Trigger.AvailableNow and waits for its end."""
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S), query.lastProgress
        finally:
            query.stop()
        return query

    # -- errors, as `moment: words`

    def batch_error(self, *words: str, topic: str | None = None, **options: Any) -> str:
        """Return the moment at which a batch read fails, and the one of `words` in its error."""
        moment = "load()"
        try:
            frame = self.batch(topic, **options)
            moment = "action"
            frame.collect()
        except Exception as e:  # noqa: BLE001 - whatever it is, it is what is looked at
            return f"{moment}: {said(e, words)}"
        return NO_ERROR

    def stream_error(self, *words: str, topic: str | None = None, **options: Any) -> str:
        """Return the moment at which a stream fails: at load(), at start(), or while it runs."""
        moment = "load()"
        try:
            frame = self.stream(topic, **options)
            moment = "start()"
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(self.checkpoint())).start()
            moment = "run"
            try:
                query.awaitTermination(WAIT_S)
            finally:
                query.stop()
        except Exception as e:  # noqa: BLE001
            return f"{moment}: {said(e, words)}"
        return NO_ERROR

    def write_error(self, frame: Any, *words: str, topic: str | None = None, **more: Any) -> str:
        """Return the error of df.write."""
        try:
            self.write(frame, topic, **more)
        except Exception as e:  # noqa: BLE001
            return f"save(): {said(e, words)}"
        return NO_ERROR

    def writing_error(
        self, frame: Any, *words: str, topic: str | None = None, mode: str = "append", **more: Any
    ) -> str:
        """Return the moment at which a streaming write fails: at start(), or while it runs."""
        moment = "start()"
        try:
            query = self.writing(frame, topic, mode, **more).trigger(availableNow=True).start()
            moment = "run"
            try:
                query.awaitTermination(WAIT_S)
            finally:
                query.stop()
        except Exception as e:  # noqa: BLE001
            return f"{moment}: {said(e, words)}"
        return NO_ERROR


class Running:
    """A query while it runs."""

    def __init__(self, query: Any, collected: Collected) -> None:
        self.query = query
        self.collected = collected

    def settle(self) -> list[str]:
        """Waits until all that is there has been read; all values so far."""
        self.query.processAllAvailable()
        return self.collected.values()

    def until(self, count: int) -> list[str]:
        """Waits until `count` records have been read; all values so far."""
        for _ in range(WAIT_S * 20):
            if len(self.collected.rows) >= count:
                break
            assert not self.query.awaitTermination(0.05), self.query.exception()
        return self.collected.values()

    def error(self, *words: str) -> str:
        """Waits until the query fails."""
        try:
            ended = self.query.awaitTermination(WAIT_S)
        except Exception as e:  # noqa: BLE001
            return f"run: {said(e, words)}"
        return "the query ended" if ended else NO_ERROR


def without_names(text: str, *topics: str) -> str:
    """`text` with the topics' names replaced, which are others in every run: by t, t1, t2 in the order given."""
    for n, topic in sorted(enumerate(topics), key=lambda item: len(item[1]), reverse=True):
        text = re.sub(re.escape(topic), f"t{n}" if n else "t", text)
    return text
