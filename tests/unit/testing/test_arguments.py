"""Wrong arguments of the test kit: each error names the argument, and the allowed values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.testing import Faults, KitBroker, Sim, record, replay, seeds
from sparklog.testing._broker import _order, duration_ms, moment_ms
from sparklog.testing._cases import KEY_BYTES, KEY_FILE, load_key
from sparklog.testing._seeds import SEEDS_VARIABLE
from tests.support.cases import for_each

NO_BROKER = cast(Any, None)


def program(_: Any) -> None:
    """Do nothing."""


async def async_program(_: Any) -> None:
    """Never run."""


def generator_program(_: Any) -> Iterator[int]:
    """Never run."""
    yield 1


@for_each("duration", ["-1 days", "", "soon", -1, -0.1, math.nan, math.inf, True, None, timedelta(days=-1)])
def test_time_only_passes_forwards(duration: Any) -> None:
    with pytest.raises(ValueError, match=r"8 days|duration|number"):
        duration_ms(duration)


@for_each("value", [0, -1, "many", None, 1.5, True])
def test_seeds_are_a_positive_number(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=re.escape(f"count = {value!r}")):
        seeds(value)
    with monkeypatch.context() as patched:
        patched.setenv(SEEDS_VARIABLE, str(value))
        with pytest.raises(ValueError, match=SEEDS_VARIABLE):
            seeds(3)


CALLS: dict[str, Callable[[Sim], object]] = {
    "brokers = 0": lambda sim: sim.run(program, brokers=0),
    "brokers = '3'": lambda sim: sim.run(program, brokers=cast(Any, "3")),
    r"topics\['in'\] = 0": lambda sim: sim.run(program, topics={"in": 0}),
    "the faults of a simulation are": lambda sim: sim.run(program, faults="earthquake"),
    "broker 1: nothing runs": lambda sim: sim.crash(1),
    "program 0: nothing runs": lambda sim: sim.kill(0),
    "host 'program-1': the hosts are": lambda sim: sim.cut("program-1", 1),
    "seed = None": lambda sim: sim.run(program, seed=cast(Any, None)),
    "duration = -1": lambda sim: sim.run(program, brokers=1, seconds=-1),
    "duration = nan": lambda sim: sim.run(program, brokers=1, seconds=math.nan),
    "seconds = nan": lambda sim: sim.run(lambda clients: clients.sleep(math.nan), brokers=1, faults=()),
}
NO_PROGRAMS = {
    "app = None": None,
    "app = 'x'": ["x"],
    "async function": async_program,
    "generator": generator_program,
}


@for_each("message, call", list(CALLS.items()))
def test_a_simulation_names_the_wrong_argument(message: str, call: Callable[[Sim], object]) -> None:
    with pytest.raises(ValueError, match=message):
        call(Sim())


@for_each("message, app", list(NO_PROGRAMS.items()))
def test_a_program_is_a_plain_function(message: str, app: Any) -> None:
    sim = Sim()
    with pytest.raises(TypeError, match=message):
        sim.run(app, brokers=1, faults=())
    sim.close()


def test_parts_of_a_simulation_have_numbers_from_1() -> None:
    sim = Sim()
    sim.run(program, brokers=1, faults=())
    one = cast(Any, 1.0)
    for call in (
        lambda: sim.crash(0),
        lambda: sim.crash(2),
        lambda: sim.kill(2),
        lambda: sim.cut(0, 1),
        lambda: sim.crash(one),
    ):
        with pytest.raises(ValueError, match="the numbers are 1 to 1"):
            call()
    sim.close()


@for_each("body", [{"seconds": math.nan}, {"seconds": math.inf}, {"api": None}, {"api": b"FETCH"}, {"times": [1]}])
def test_orders_are_texts_and_numbers(body: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{next(iter(body))} = "):
        _order("127.0.0.1:1", "POST", "/faults", body)


@for_each("rows", [{"n": 1}, "text", b"bytes"])
def test_one_row_is_no_list_of_rows(rows: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a list of rows is needed"):
        KitBroker.produce(NO_BROKER, "numbers", rows)


@for_each("transactional_id", ["", None, 5])
def test_a_fenced_producer_has_an_id(transactional_id: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"transactional_id = {transactional_id!r}"):
        Faults(NO_BROKER).fence_producer(transactional_id)


@for_each("moment", [None, True, 1.5, b"10:00"])
def test_a_point_in_time_is_a_moment(moment: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"moment = {moment!r}"):
        moment_ms(moment)


@for_each(
    "name, arguments",
    [
        *(("last", {"last": last}) for last in ("", "soon", "-1h", "5", None)),
        *(("mask", {"mask": mask}) for mask in ("email", 5)),
        *(("mask_key", {"mask_key": key}) for key in (b"", "secret")),
    ],
)
def test_a_record_names_the_wrong_argument(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}"):
        record("orders", tmp_path / "cases", **arguments)
    assert not (tmp_path / "cases").exists()


@for_each("speed", [0, -1, math.nan, math.inf, "2"])
def test_a_pace_is_above_0(speed: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="speed = "):
        replay(tmp_path / "case.parquet", NO_BROKER, speed=speed)


def test_another_file_is_no_case(tmp_path: Path) -> None:
    (tmp_path / "case.parquet").write_bytes(b"no Parquet")
    for path in (tmp_path / "case.parquet", tmp_path):
        with pytest.raises(InvalidRequestError, match="is no case"):
            replay(path, NO_BROKER)


def test_a_secret_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path))
    key = load_key()
    assert len(key) == KEY_BYTES
    assert load_key() == key
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / KEY_FILE).write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="0 bytes"):
        load_key()
