"""Wrong arguments of the test kit: each error names the argument, and the allowed values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sparklog_broker.testing.faults import error_of, parse_fault

from sparklog.errors import InvalidRequestError, NotLeaderError
from sparklog.testing import Faults, KitBroker, Sim, SimClients, record, replay, seeds
from sparklog.testing._broker import _order, duration_ms, moment_ms
from sparklog.testing._cases import KEY_BYTES, KEY_FILE, METADATA, load_key
from sparklog.testing._seeds import SEEDS_VARIABLE
from sparklog.testing._stream import inputs_of
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
    "faults = .earthquake.: a list of kill": lambda sim: sim.run(program, faults="earthquake"),
    "faults = None": lambda sim: sim.run(program, faults=cast(Any, None)),
    r"faults = \[5\]": lambda sim: sim.run(program, faults=cast(Any, [5])),
    r"topics = \['in'\]": lambda sim: sim.run(program, topics=cast(Any, ["in"])),
    "topics = {5: 1}": lambda sim: sim.run(program, topics=cast(Any, {5: 1})),
    r"cut\(1, 'broker-1'\): two different": lambda sim: sim.run(program, brokers=1, faults=()).cut(1, "broker-1"),
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
    r"app = \[\]": [],
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


def test_a_condition_is_a_function() -> None:
    with pytest.raises(TypeError, match="until = 5"):
        Sim().run(program, until=cast(Any, 5))


def test_a_sim_heals_only_its_run() -> None:
    sim = Sim()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"call sim\.run"):
            sim.heal()
        sim.run(program, brokers=1, faults=())
        sim.close()


CLIENT_CALLS: dict[str, Callable[[SimClients], object]] = {
    "topics": lambda clients: clients.consumer(cast(Any, ["in"])),
    "group_id = '': the name of a group": lambda clients: clients.consumer("in", group_id=""),
    "group_id = 5": lambda clients: clients.consumer("in", group_id=cast(Any, 5)),
    "session_timeout_ms = 0": lambda clients: clients.consumer("in", session_timeout_ms=0),
    "on_revoked = 5": lambda clients: clients.consumer("in", on_revoked=cast(Any, 5)),
    "commit: the consumer has no group": lambda clients: clients.consumer("in").commit(),
    "timeout_ms = None": lambda clients: clients.consumer("in").poll(cast(Any, None)),
    "delivery_timeout_ms = -1": lambda clients: clients.producer(delivery_timeout_ms=-1),
    "retries = -1": lambda clients: clients.producer(retries=-1),
    "transactional_id = 5": lambda clients: clients.producer(transactional_id=cast(Any, 5)),
    "topic = None": lambda clients: clients.producer().send(cast(Any, None), b"x"),
}


def test_clients_of_a_simulation_name_the_wrong_argument() -> None:
    def calls(clients: SimClients) -> None:
        for message, call in CLIENT_CALLS.items():
            with pytest.raises(InvalidRequestError, match=message):
                call(clients)

    sim = Sim()
    sim.run(calls, brokers=1, faults=(), topics={"in": 1})
    sim.close()


QUERIES: dict[str, Callable[[], object]] = {
    "query = None": lambda: inputs_of(None, None),
    "query = 5": lambda: inputs_of(5, ["in"]),
    "inputs = 'in'": lambda: inputs_of(program, "in"),
    r"inputs = \[None\]": lambda: inputs_of(program, [None]),
    "inputs = 5": lambda: inputs_of(program, 5),
    "takes any arguments": lambda: inputs_of(lambda *frames: frames, None),
}


@for_each("message", list(QUERIES))
def test_a_query_names_its_inputs(message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        QUERIES[message]()


def test_parameters_with_defaults_are_no_inputs() -> None:
    assert inputs_of(lambda orders, paid, limit=3: (orders, paid, limit), None) == ["orders", "paid"]
    assert inputs_of(lambda *frames: frames, ["orders"]) == ["orders"]


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


ORDERS = {
    "times = True: a whole number of requests": b'{"fault": "slow", "api": "FETCH", "seconds": 1, "times": true}',
    "times = None: a whole number of requests": b'{"fault": "slow", "api": "FETCH", "seconds": 1, "times": null}',
    "times = -1: a whole number of requests": b'{"fault": "slow", "api": "FETCH", "seconds": 1, "times": -1}',
    "seconds = '1': a number from 0": b'{"fault": "slow", "api": "FETCH", "seconds": "1"}',
    "seconds = 3601.0: a number from 0": b'{"fault": "slow", "api": "FETCH", "seconds": 3601}',
    "after_bytes = 1.5: a whole number of bytes": b'{"fault": "disconnect", "after_bytes": 1.5}',
    "after_bytes = -1: a whole number of bytes": b'{"fault": "disconnect", "after_bytes": -1}',
    "api = 5: the name of a request": b'{"fault": "lose_response", "api": 5}',
    "api = 'FETCHES': did you mean FETCH?": b'{"fault": "lose_response", "api": "FETCHES"}',
    "error = 'NOT_LEADER_OR_FOLLOWER': did you mean": b'{"fault": "refuse", "api": "FETCH", "error": "NOT_LEADER_OR_FOLLOWER"}',
    "is no order: Object missing required field": b'{"fault": "slow", "api": "FETCH"}',
    "is no order: Input data was truncated": b"{",
    "fault = 'fire': refuse, slow": b'{"fault": "fire"}',
}


@for_each("message", list(ORDERS))
def test_an_order_names_the_wrong_field(message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        parse_fault(ORDERS[message])


@for_each("name", ["NOT_LEADER", "not_leader", "NotLeader", "NotLeaderError", "NOT_LEADER_ERROR", "Not_Leader"])
def test_an_error_has_its_name_or_the_name_of_its_class(name: str) -> None:
    assert isinstance(error_of(name), NotLeaderError)


def test_each_error_that_a_message_lists_can_be_ordered() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        error_of("none")
    for name in str(raised.value).partition("the errors are ")[2].split(", "):
        assert error_of(name).code


@for_each("rows", [{"n": 1}, "text", b"bytes", None, 5])
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
        moment_ms(moment, 0)


@for_each(
    "name, arguments",
    [
        *(("last", {"last": last}) for last in ("", "soon", "-1h", "5", None)),
        *(("mask", {"mask": mask}) for mask in ("email", 5, None, [5])),
        *(("mask_key", {"mask_key": key}) for key in (b"", "secret")),
    ],
)
def test_a_record_names_the_wrong_argument(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}"):
        record("orders", tmp_path / "cases", **arguments)
    assert not (tmp_path / "cases").exists()


@for_each("speed", [0, -1, math.nan, math.inf, "2", True])
def test_a_pace_is_above_0(speed: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="speed = "):
        replay(tmp_path / "case.parquet", NO_BROKER, speed=speed)


def test_another_file_is_no_case(tmp_path: Path) -> None:
    (tmp_path / "case.parquet").write_bytes(b"no Parquet")
    for path in (tmp_path / "case.parquet", tmp_path):
        with pytest.raises(InvalidRequestError, match="is no case"):
            replay(path, NO_BROKER)


CASE = pa.table(
    {"n": [1], "_partition": pa.array([0], pa.int32()), "_timestamp": pa.array([0], pa.timestamp("us", "UTC"))}
)
DEFINITION: dict[str, Any] = {
    "topic": "orders", "kind": "typed", "partitions": 1, "key_columns": [], "timestamp_column": None, "masked": [],
}  # fmt: skip
HOSTILE_CASES = {
    "no definition": (CASE, None),
    "no JSON": (CASE, b"{"),
    "an empty definition": (CASE, b"{}"),
    "no partitions": (CASE, json.dumps(DEFINITION | {"partitions": 0}).encode()),
    "no column of partitions": (CASE.drop_columns(["_partition"]), json.dumps(DEFINITION).encode()),
    "no times": (CASE.drop_columns(["_timestamp"]), json.dumps(DEFINITION).encode()),
    "times that are texts": (CASE.set_column(2, "_timestamp", pa.array(["x"])), json.dumps(DEFINITION).encode()),
    "a wrong partition": (
        CASE.set_column(1, "_partition", pa.array([1], pa.int32())), json.dumps(DEFINITION).encode(),
    ),
    "a null partition": (
        CASE.set_column(1, "_partition", pa.array([None], pa.int32())), json.dumps(DEFINITION).encode(),
    ),
}  # fmt: skip


@for_each("name", list(HOSTILE_CASES))
def test_a_hostile_case_creates_no_topic(name: str, tmp_path: Path) -> None:
    table, definition = HOSTILE_CASES[name]
    pq.write_table(table.replace_schema_metadata(definition and {METADATA: definition}), tmp_path / "case.parquet")
    with pytest.raises(InvalidRequestError, match="is no case: write one"):
        replay(tmp_path / "case.parquet", NO_BROKER)


@for_each("case", [None, 5])
def test_a_case_is_a_path(case: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"case = {case}"):
        replay(case, NO_BROKER)


def test_a_secret_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path))
    key = load_key()
    assert len(key) == KEY_BYTES
    assert load_key() == key
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / KEY_FILE).write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="0 bytes"):
        load_key()
