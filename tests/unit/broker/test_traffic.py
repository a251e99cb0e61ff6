"""Topics have numbers of their own up to a limit."""

from __future__ import annotations

from sparklog_broker.counters.traffic import OTHERS, Traffic


def test_topics_beyond_the_limit_are_counted_together() -> None:
    traffic = Traffic(2)
    a, b, c, d = map(traffic.of, "abcd")
    assert c is d is traffic.others
    assert len({id(a), id(b), id(c)}) == 3
    assert traffic.of("a") is a
    assert [traffic.has_own(t) for t in "abc"] == [True, True, False]
    assert [topic for topic, _ in traffic.items()] == ["a", "b", OTHERS]


def test_a_deleted_topic_gives_its_place_to_a_new_one() -> None:
    traffic = Traffic(1)
    old = traffic.of("a")
    old.bytes_in = 5
    assert traffic.of("b") is traffic.others
    traffic.forget("a")
    traffic.forget("b")
    new = traffic.of("a")
    assert new is not old
    assert new.bytes_in == 0, "another topic of that name begins anew"


def test_without_places_everything_is_one() -> None:
    traffic = Traffic(0)
    assert traffic.of("a") is traffic.others
    assert dict(traffic.items()) == {OTHERS: traffic.others}
