"""The section about the mirror on a topic's page."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from sparklog.client.admin.mirror_description import MirrorDescription, MirrorPartition, MirrorTopic
from sparklog.console.web import make_templates


def section(*, refused_topic: str = "", source_end: int = 10, held: int = 0, **state: Any) -> str:
    """Text of the section without tags."""
    partition = MirrorPartition(0, source_end, 7, source_end - 7 if source_end >= 0 else -1, 1.0, 2, 3, held)
    topic = MirrorTopic(
        **{"topic": "t", "state": "running", "reason": "", "is_reported": True, **state}, partitions=(partition,)
    )
    mirror = MirrorDescription("old", "kafka://h:1", "", "t", "", (topic,), "")
    html = (
        make_templates()
        .get_template("mirror_section.html")
        .render(mirror=mirror, topic=SimpleNamespace(name="t"), refused_topic=refused_topic)
    )
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_the_section_shows_offsets_and_the_next_step() -> None:
    text = section()
    assert "From kafka://h:1" in text and "sparklog mirror promote old t" in text
    assert "3 offsets are missing" in text and " 0 7 10 3 2 " in text
    assert "Refused" not in text and "Paused" not in text and "No mirror worker" not in text


def test_the_section_names_the_topic_of_refused_records() -> None:
    text = section(refused_topic="t.refused")
    assert "t.refused" in text and "Refused" in text and " 0 7 10 3 2 3 " in text


def test_the_section_shows_a_pause_an_error_and_a_missing_worker() -> None:
    text = section(state="paused", reason="<b>created again</b>", error="no leader", is_reported=False)
    assert "Paused: &lt;b&gt;created again" in text and "no leader" in text and "No mirror worker has reported" in text


def test_the_section_counts_offsets_behind_an_open_transaction() -> None:
    assert "5 offsets wait at the source for the end of an open transaction" in section(held=5)
    assert "open transaction" not in section()


def test_the_section_shows_missing_ends_of_the_source() -> None:
    text = section(source_end=-1)
    assert "The source&#39;s ends are not known" in text or "The source's ends are not known" in text
    assert " 0 7 – – 2 " in text
