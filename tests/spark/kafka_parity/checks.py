"""Expectations of a case, and sparklog's differences, each with its reason."""

from __future__ import annotations

from typing import Any, NamedTuple


class Differs(NamedTuple):
    """A difference: sparklog's behaviour instead of Kafka's, and the reason why it stays."""

    sparklog: Any
    why: str


GATEWAY: dict[tuple[str, str], Differs] = {}
"""Differences of Spark's own connector at sparklog's Kafka gateway, by case and check. The value is the gateway's."""


class Observation(NamedTuple):
    """One check of a case on one system: the result, in full and in a few words, and the reason if it may differ."""

    case: str
    check: str
    system: str
    found: str
    words: str
    why: str = ""


class Checks:
    """The checks of one case on one system. `kafka` is Kafka's result, `differs` sparklog's if it is another one; both
    are compared with the real one. Spark's connector at the gateway has to see what it sees at Kafka, but for
    GATEWAY."""

    def __init__(self, case: str, system: str) -> None:
        self.case = case
        self._system = system
        self.seen: list[Observation] = []
        self.problems: list[str] = []

    def __call__(self, check: str, found: Any, kafka: Any, differs: Differs | None = None) -> None:
        """Note a result; an unexpected one fails the case at its end."""
        if any(s.check == check for s in self.seen):
            raise AssertionError(f"two checks are called {check!r}")
        if self._system == "gateway":
            differs = GATEWAY.get((self.case, check))
        why = "" if differs is None else differs.why
        self.seen.append(
            Observation(self.case, check, self._system, repr(in_order(found)), shown(in_order(found)), why)
        )
        expected = differs.sparklog if differs is not None and self._system != "kafka" else kafka
        if differs is not None and (differs.sparklog == kafka or not differs.why.strip()):
            self.problems.append(f"{check}: a difference has to be one, and to have a reason")
        if found != expected:
            self.problems.append(f"{check}: {self._system} gave {found!r} in the place of {expected!r}")

    def finish(self) -> None:
        """Raises AssertionError if anything was not as expected, or nothing was checked."""
        assert self.seen, f"{self.case} checks nothing"
        assert not self.problems, "\n".join(["", *self.problems])


def in_order(found: Any) -> Any:
    """`found` with the keys of dictionaries in order: rows of several partitions come in any order."""
    if isinstance(found, dict):
        return {k: in_order(found[k]) for k in sorted(found, key=repr)}
    return found


VALUES_SHOWN = 6
CHARS_SHOWN = 160


def shown(found: Any) -> str:
    """A found value in a few words, for the table."""
    if isinstance(found, dict):
        text = ", ".join(f"{k}: {shown(v)}" for k, v in found.items())
    elif isinstance(found, (list, tuple, set)):
        items = sorted(found, key=repr) if isinstance(found, set) else list(found)
        texts = [shown(i) for i in items]
        if len(texts) > VALUES_SHOWN:
            text = f"{len(texts)}: {', '.join(texts[:2])}, …, {texts[-1]}"
        else:
            text = ", ".join(texts)
        text = f"[{text}]"
    elif isinstance(found, bool) or found is None:
        text = {True: "yes", False: "no", None: "null"}[found]
    else:
        text = str(found)
    return text if len(text) <= CHARS_SHOWN else text[: CHARS_SHOWN - 1] + "…"
