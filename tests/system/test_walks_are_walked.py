"""A real client and a real broker enter the functions of docs/internals/life-of-a-batch.md in the order it says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.unit.walks import ROOT, WALKS, tables

RECORDER = """
import os, sys, threading, time

WANTED = {}
for line in open(os.environ["WALKS"]):
    module, function = line.split()
    WANTED.setdefault(function, []).append(module)
OUT = open(os.path.join(os.environ["WALKED"], str(os.getpid())), "w", buffering=1)

ROOT = os.environ["ROOT"] + os.sep

def callers(frame):
    # the modules, the nearest first
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith(ROOT):
            yield frame.f_code.co_filename.removeprefix(ROOT)

def note(frame, event, arg):
    if event == "call":
        name = frame.f_code.co_qualname
        for module in WANTED.get(name, ()):
            if frame.f_code.co_filename.endswith(module):
                through = ",".join(dict.fromkeys(callers(frame)))
                OUT.write(f"{time.monotonic_ns()} {module} {name} {through}\\n")

threading.setprofile(note)
sys.setprofile(note)
"""
"""A sitecustomize.py: each process that finds it writes down the functions it enters and where they were called from,
whatever the thread."""

CLIENT = """
import time
import sitecustomize
import sparklog

def mark(what):
    sitecustomize.OUT.write(f"{time.monotonic_ns()} mark {what}\\n")

tp = sparklog.TopicPartition("t", 0)
with sparklog.start_local() as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
    admin.create_topic("t", 1)
    with sparklog.Producer(broker.bootstrap_servers, linger_ms=1, compression="zstd") as producer:
        producer.send("t", b"first").result(60)
        mark("0")
        producer.send("t", b"second").result(60)
    mark("1")
    settings = dict(group_id="g", auto_offset_reset="earliest", local_read="off", enable_auto_commit=False)
    with sparklog.Consumer(broker.bootstrap_servers, **settings) as consumer:
        consumer.assign([tp])
        # two requests may be on their way before the first poll is entered: the third, of the third answer, is not
        for known in (2, 3, 4):
            while consumer.position(tp) < known:
                consumer.poll(1000)
            with sparklog.Producer(broker.bootstrap_servers) as producer:
                producer.send("t", b"more").result(60)
        mark("2")
        consumer.commit()
        mark("3")
"""
WALK_OF = (0, 0, 0, 1, 1, 1, 2, 2)
"""Which walk each table belongs to."""
NOT_ON_THE_WAY = {
    "broker_daemon/sparklog_broker/__main__.py",  # the event loop runs in it
    "broker_daemon/sparklog_broker/main.py",
    "broker_daemon/sparklog_broker/network/pace.py",  # runs what it is given, in slices
}


class Call(NamedTuple):
    module: str
    function: str
    through: tuple[str, ...]
    """The modules of its callers."""


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[list[Call]]:
    """The calls in each walk, of client and broker, by time."""
    code, found = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("walked")
    (code / "sitecustomize.py").write_text(RECORDER)
    wanted = sorted({f"{module} {function}" for table in tables(WALKS) for _, module, function in table})
    (code / "walks").write_text("\n".join(wanted))
    path = os.pathsep.join(map(str, (code, ROOT, ROOT / "datasource", ROOT / "broker_daemon")))
    subprocess.run(
        [sys.executable, "-c", CLIENT],
        env=os.environ | {"PYTHONPATH": path, "WALKS": str(code / "walks"), "WALKED": str(found), "ROOT": str(ROOT)},
        cwd=found,
        check=True,
        timeout=240,
    )
    lines = [line.split() for path in found.iterdir() for line in path.read_text().splitlines()]
    walks: list[list[Call]] = [[]]
    for _, module, function, *through in sorted(lines, key=lambda line: int(line[0])):
        if module == "mark":
            walks.append([])
        else:
            walks[-1].append(Call(module, function, tuple(through[0].split(",")) if through else ()))
    assert len(walks) == 5
    return walks[1:4]


@pytest.mark.parametrize("number", range(len(WALK_OF)))
def test_the_functions_are_entered_in_order(walked: list[list[Call]], number: int) -> None:
    calls = iter([call[:2] for call in walked[WALK_OF[number]]])
    missing = [row[1:] for row in tables(WALKS)[number] if row[1:] not in calls]
    assert not missing, f"not entered, or not behind the one before: {missing[0]}"


@pytest.mark.parametrize("number", range(len(WALK_OF)))
def test_no_module_on_the_way_is_left_out(walked: list[list[Call]], number: int) -> None:
    named = NOT_ON_THE_WAY | {module for table in tables(WALKS) for _, module, _ in table}
    calls = iter([call[:2] for call in walked[WALK_OF[number]] if named.issuperset(call.through)])
    missing = [row[1:] for row in tables(WALKS)[number] if row[1:] not in calls]
    assert not missing, f"entered only through modules that the walk does not name: {missing[0]}"
