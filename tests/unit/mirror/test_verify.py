"""The comparison of a mirror's rows with those of its source."""

from __future__ import annotations

import pyarrow as pa

from sparklog.mirror.worker.verify import comparable_rows

YEAR_10000_US = 253_402_300_800_000_000


def test_times_after_the_year_9999_are_compared() -> None:
    time = pa.array([YEAR_10000_US, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    date = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    long = pa.array([2**62, 0], pa.int64()).cast(pa.duration("us"))
    nested = pa.StructArray.from_arrays([time, date, long], ["time", "date", "long"])
    places = pa.MapArray.from_arrays([0, 1, 1], pa.array(["a"]), pa.ListArray.from_arrays([0, 1], nested.slice(0, 1)))
    rows = comparable_rows(pa.table({"n": pa.array([1, 2]), "time": time, "nested": nested, "places": places}))
    last = {"time": YEAR_10000_US, "date": 2**31 - 1, "long": 2**62}
    assert rows[0] == {"n": 1, "time": YEAR_10000_US, "nested": last, "places": [("a", [last])]}
    assert rows[1] == {"n": 2, "time": None, "nested": {"time": None, "date": 0, "long": 0}, "places": []}
