"""What a scrape of /metrics costs, and what it does to a tiny request beside it.

    python -m tests.benchmarks.scrape_cost [--topics 200] [--partitions 10] [--per-partition] [--seconds 15]

Starts a broker of its own with that many topics, partitions and groups, and times tiny requests in turns: without
scrapes, with one every fifteen seconds as Prometheus is often told, and with one every second. Turns alternate within a
run, so that what else the machine does falls on all of them. For the last kind of turns it also tells requests that
met a scrape from those between two of them, which are neighbours. The scraper is a process of its own that throws away
what it reads.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from sparklog.protocol import group_messages as groups
from sparklog.protocol.messages import Api, HandshakeRequest, HandshakeResponse
from sparklog.protocol.topic_messages import CreateTopicRequest, CreateTopicResponse
from tests.benchmarks.broker_raw import RawClient
from tests.system.broker_process import BrokerProcess

GROUPS = 20
INTERVALS_S = "15,1"
_SCRAPER = """
import sys, time, urllib.request
url = sys.argv[1]
for line in sys.stdin:
    interval_s, seconds = map(float, line.split())
    end = time.monotonic() + seconds
    due = time.monotonic() + min(interval_s, seconds) / 2
    while due < end:
        time.sleep(max(0, due - time.monotonic()))
        began = time.monotonic()
        urllib.request.urlopen(url, timeout=60).read()
        print(began, time.monotonic(), flush=True)
        due += interval_s
    print("done", flush=True)
"""


def fill(client: RawClient, topics: int, partitions: int) -> None:
    """Makes the topics, and groups that have committed an offset of each partition of some."""
    for i in range(topics):
        client.request(Api.CREATE_TOPIC, CreateTopicRequest(f"topic-{i:05d}", partitions), CreateTopicResponse)
    share = max(1, topics // GROUPS)
    for number in range(GROUPS):
        offsets = [
            groups.CommittedOffset(f"topic-{i % topics:05d}", p, 0)
            for i in range(number * share, (number + 1) * share)
            for p in range(partitions)
        ]
        request = groups.OffsetCommitRequest(f"group-{number}", offsets)
        client.request(Api.OFFSET_COMMIT, request, groups.OffsetCommitResponse)


class Turn(NamedTuple):
    """When requests began (s), how long they took (us), and from when to when scrapes were made (s)."""

    began_s: np.ndarray
    took_us: np.ndarray
    scrapes_s: list[tuple[float, float]]

    @property
    def meets_scrape(self) -> np.ndarray:
        """By request."""
        met = np.zeros(len(self.began_s), bool)
        for start, end in self.scrapes_s:
            met |= (self.began_s + self.took_us / 1e6 > start) & (self.began_s < end)
        return met


def one_turn(client: RawClient, seconds: float, pause_s: float) -> Turn:
    """Tiny requests, one after the other, `pause_s` between them."""
    began_s, took_us = [], []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        client.request(Api.HANDSHAKE, HandshakeRequest(), HandshakeResponse)
        began_s.append(began)
        took_us.append((time.monotonic() - began) * 1e6)
        if pause_s:
            time.sleep(pause_s)
    return Turn(np.array(began_s), np.array(took_us), [])


def scrape(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def scrape_cost(broker: BrokerProcess, url: str, count: int = 20) -> str:
    """Of scrapes while nothing else happens."""
    scrape(url)
    before, took = cpu_s(broker.process.pid), []
    for _ in range(count):
        began = time.perf_counter()
        body = scrape(url)
        took.append(time.perf_counter() - began)
    used_ms = (cpu_s(broker.process.pid) - before) / count * 1000
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    slices = re.search(rb"(?m)^sparklog_scrape_slices (\S+)$", body)
    assert slices
    return (
        f"a scrape: {series} series, {len(body) / 1e6:.2f} MB, {statistics.median(took) * 1000:.0f} ms "
        f"({max(took) * 1000:.0f} at most), {used_ms:.0f} ms of processor time, in {float(slices[1]):.0f} slices"
    )


def measure(
    client: RawClient, url: str, seconds: float, rounds: int, pause_s: float, intervals_s: Sequence[float]
) -> None:
    """Prints medians of the turns, and of what each turn is to the one without scrapes beside it."""
    scraper = subprocess.Popen(
        [sys.executable, "-c", _SCRAPER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert scraper.stdin is not None
    assert scraper.stdout is not None
    found: dict[float | None, list[Turn]] = {interval: [] for interval in (None, *intervals_s)}
    for _ in range(rounds):
        for interval_s, turns in found.items():
            if interval_s is not None:
                print(interval_s, seconds, file=scraper.stdin, flush=True)
            turn = one_turn(client, seconds, pause_s)
            turns.append(turn if interval_s is None else turn._replace(scrapes_s=_scrapes(scraper.stdout)))
    scraper.stdin.close()
    scraper.wait()
    scraper.stdout.close()
    percentiles = {
        i: np.array([np.percentile(turn.took_us, [50, 99, 99.9]) for turn in turns]) for i, turns in found.items()
    }
    for interval_s, each in percentiles.items():
        p50, p99, p999 = np.median(each, axis=0)
        ratio = np.median(each[:, 1] / percentiles[None][:, 1])
        name = "no scrapes" if interval_s is None else f"one every {interval_s:.0f} s"
        print(
            f"  {name:16} p50 {p50:6.0f} us, p99 {p99:6.0f} us ({each[:, 1].min():.0f} to {each[:, 1].max():.0f}), "
            f"p99.9 {p999:6.0f} us, p99 to that without scrapes {ratio:.2f}"
        )
    _print_neighbours(found[intervals_s[-1]])


def _scrapes(lines: IO[str]) -> list[tuple[float, float]]:
    """What the scraper says of its turn."""
    found = []
    while (line := lines.readline().strip()) != "done":
        start, end = line.split()
        found.append((float(start), float(end)))
    return found


def _print_neighbours(turns: Sequence[Turn]) -> None:
    met = np.concatenate([turn.meets_scrape for turn in turns])
    took_us = np.concatenate([turn.took_us for turn in turns])
    for name, some in (("during a scrape", took_us[met]), ("between scrapes", took_us[~met])):
        p50, p90, p99 = np.percentile(some, [50, 90, 99])
        share = len(some) / len(took_us)
        print(f"  {name:16} p50 {p50:6.0f} us, p90 {p90:6.0f} us, p99 {p99:6.0f} us, {share:.1%} of the last turns")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=10, help="of each topic")
    parser.add_argument("--per-partition", action="store_true", help="series for each partition")
    parser.add_argument("--seconds", type=float, default=15.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--intervals", default=INTERVALS_S, help="seconds between scrapes, of each kind of turn")
    options = parser.parse_args(arguments)
    intervals_s = [float(text) for text in options.intervals.split(",")]
    with tempfile.TemporaryDirectory(prefix="sparklog-bench-") as directory:
        shown = options.topics * options.partitions if options.per_partition else 0
        settings = f'metrics.listen = "127.0.0.1:0"\nmetrics.partitions.max = {shown}\n'
        broker = BrokerProcess(Path(directory) / "data", settings=settings, work_dir=Path(directory))
        try:
            url = broker.metrics_url
            with broker.connect() as client:
                fill(client, options.topics, options.partitions)
                one_turn(client, 1.0, 0.0)
                each = "a series each" if options.per_partition else "sums by topic"
                print(f"{options.topics} topics of {options.partitions} partitions ({each}), {GROUPS} groups")
                print(scrape_cost(broker, url))
                for pause_s, name in ((0.0, "one after the other"), (0.002, "2 ms apart")):
                    print(f"tiny requests, {name}; {options.rounds} turns of {options.seconds:.0f} s each")
                    measure(client, url, options.seconds, options.rounds, pause_s, intervals_s)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
