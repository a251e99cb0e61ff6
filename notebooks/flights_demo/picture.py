"""The picture: a year of departure delays, hour by hour, drawn from what came out of the result topic."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEW_YORK = "America/New_York"
NAMES = {"EWR": "Newark (EWR)", "JFK": "John F. Kennedy (JFK)", "LGA": "LaGuardia (LGA)"}
FIRST_HOUR, LAST_HOUR = 5, 23
DELAY_SHOWN_MAX_MIN = 90
_EPOCH = dt.date(1970, 1, 1)


def hour_grid(result: pa.Table, origin: str, first_day: int, days: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean delay in minutes by local hour (rows, FIRST_HOUR to LAST_HOUR) and day (columns); NaN where nothing left."""
    rows = result.filter(pc.equal(result["origin"], origin))
    hour, day = local_hour_and_day(rows["time_hour"])
    grid = np.full((LAST_HOUR - FIRST_HOUR + 1, days), np.nan)
    inside = (hour >= FIRST_HOUR) & (hour <= LAST_HOUR) & (day >= first_day) & (day < first_day + days)
    delay = rows["mean_delay_min"].to_numpy().astype(np.float64)
    grid[hour[inside] - FIRST_HOUR, day[inside] - first_day] = delay[inside]
    return grid


def local_hour_and_day(
    times: pa.ChunkedArray,
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Hour of the day and days since 1970 in New York, int64 each, of UTC timestamps."""
    local = times.cast(pa.timestamp("us", tz=NEW_YORK))
    hour = pc.hour(local).to_numpy()
    day = pc.local_timestamp(local).cast(pa.date32(), safe=False).cast(pa.int32()).to_numpy().astype(np.int64)
    return hour, day


def daily_rain(weather: pa.Table, first_day: int, days: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rain and snow per day in mm, the mean of the three airports (the data have inches per hour)."""
    _, day = local_hour_and_day(weather["time_hour"])
    inside = (day >= first_day) & (day < first_day + days)
    inches = pc.fill_null(weather["precip"], 0.0).to_numpy()
    return np.bincount(day[inside] - first_day, weights=inches[inside], minlength=days) * 25.4 / len(NAMES)


def draw(result: pa.Table, weather: pa.Table, path: Path) -> Path:
    """Draws the heat maps and the rain below them into a PNG file and gives its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.dates
    import matplotlib.pyplot as plt

    mdates: Any = matplotlib.dates

    _, day = local_hour_and_day(result["time_hour"])
    first_day, days = int(day.min()), int(day.max() - day.min()) + 1
    left = mdates.date2num(_EPOCH + dt.timedelta(days=first_day))
    figure, axes = plt.subplots(4, 1, figsize=(14, 10), sharex=True, height_ratios=[3, 3, 3, 1], layout="constrained")
    colours = plt.get_cmap("inferno").with_extremes(bad="#c5ced6")
    image: Any = None
    for axis, (origin, name) in zip(axes, NAMES.items(), strict=False):
        grid = np.ma.masked_invalid(hour_grid(result, origin, first_day, days))
        image = axis.imshow(
            grid, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=DELAY_SHOWN_MAX_MIN, interpolation="nearest",
            extent=(left, left + days, FIRST_HOUR - 0.5, LAST_HOUR + 0.5),
        )  # fmt: skip
        axis.set_title(name, loc="left", fontsize=11)
        axis.set_yticks([6, 12, 18], ["06:00", "12:00", "18:00"])
        axis.set_ylabel("scheduled hour")
    colour_bar = figure.colorbar(image, ax=axes[:3], extend="max", pad=0.01, aspect=40)
    colour_bar.set_label("mean departure delay, minutes")
    rain = daily_rain(weather, first_day, days)
    axes[3].bar(left + np.arange(days) + 0.5, rain, width=1.0, color="#3182bd")
    axes[3].set_ylim(0, max(5.0, float(rain.max()) * 1.1))
    axes[3].set_ylabel("rain, mm")
    axes[3].set_xlim(left, left + days)
    for side in ("top", "right"):
        axes[3].spines[side].set_visible(False)
    locator = mdates.AutoDateLocator()
    axes[3].xaxis.set_major_locator(locator)
    axes[3].xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    flights = f"{int(pc.sum(result['flights']).as_py() or 0):,}"
    figure.suptitle(
        f"When does New York run late? {flights} flights by airport, day and hour\n", fontsize=16, fontweight="bold"
    )
    caption = "Streamed through sparklog, aggregated by Spark. Grey: nothing scheduled, or every flight cancelled."
    if days > 300:
        caption += " Mornings are on time; evenings pay for the whole day, most of all in the storms of summer."
    figure.text(0.01, 0.945, caption, fontsize=10, color="#555555")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
