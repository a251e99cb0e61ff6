"""The Spark settings that users are told to set."""

from __future__ import annotations

from pathlib import Path

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


def published_settings() -> dict[str, str]:
    """Return the settings in conf/spark-defaults.conf."""
    path = Path(__file__).resolve().parents[1] / "conf" / "spark-defaults.conf"
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line.startswith("spark."))
