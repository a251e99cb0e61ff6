"""The listed breaks of rules fit the product: each changes one place, and names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.campaigns.mutations.__main__ import FOLDERS, breaks
from tests.campaigns.mutations.breaking import Break, random_breaks

ROOT = Path(__file__).resolve().parents[3]


def misfit(one: Break) -> str:
    """The reason why a row is of no use; "" for a good one."""
    path = ROOT / one.file
    if not path.is_file():
        return "the file does not exist"
    source = path.read_text(encoding="utf-8")
    if source.count(one.old) != 1:
        return f"`old` occurs {source.count(one.old)} times: {one.old}"
    ast.parse(source.replace(one.old, one.new))
    missing = [test for test in one.tests if not (ROOT / test.partition("::")[0]).exists()]
    return f"there is no {missing[0]}" if missing else "" if one.tests and one.rule else "it names no test or no rule"


def test_each_listed_break_fits_the_product() -> None:
    listed = breaks()
    misfits = [f"{one.file}, {one.rule}: {reason}" for one in listed if (reason := misfit(one))]
    assert not misfits, "\n".join(misfits)
    assert len({(one.file, one.old) for one in listed}) == len(listed)


def test_random_breaks_are_repeated_by_their_seed_and_change_one_place_each() -> None:
    drawn = random_breaks(ROOT, 5, len(FOLDERS), FOLDERS)
    assert drawn == random_breaks(ROOT, 5, len(FOLDERS), FOLDERS)
    for one, folder in zip(drawn, FOLDERS, strict=True):
        assert one.file.startswith(folder)
        source = (ROOT / one.file).read_text(encoding="utf-8")
        assert source.count(one.old) == 1
        assert ast.dump(ast.parse(source.replace(one.old, one.new))) != ast.dump(ast.parse(source))
