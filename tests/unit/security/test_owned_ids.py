"""A producer id belongs to its principal, on every broker, and to no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparklog.security.owned_ids import SECRET_BYTES, belongs_to, is_owned, number_of, owned_id
from sparklog.security.principals import ANONYMOUS, Principal, user
from sparklog.types import PRODUCER_ID_END
from tests.support.cases import for_each

SECRET = bytes(range(SECRET_BYTES))
ALICE, MALLORY = user("alice"), user("mallory")
NUMBERS = st.integers(0, 2**38 - 1)


@given(NUMBERS, st.sampled_from([ALICE, MALLORY, ANONYMOUS, Principal("User", "ü" * 1024)]))
def test_an_id_is_its_principals(number: int, principal: Principal) -> None:
    made = owned_id(SECRET, number, principal)
    assert PRODUCER_ID_END <= made < 2**63
    assert is_owned(made)
    assert number_of(made) == number
    assert belongs_to(SECRET, made, principal)
    assert not belongs_to(SECRET, made ^ 1, principal)


@for_each("number", [0, 1, 999, 2**38 - 1])
def test_an_id_belongs_to_one_principal(number: int) -> None:
    made = owned_id(SECRET, number, ALICE)
    assert not belongs_to(SECRET, made, MALLORY)
    assert not belongs_to(SECRET, made, Principal("Group", "alice"))
    assert not belongs_to(bytes(SECRET_BYTES), made, ALICE)


@given(st.lists(NUMBERS, min_size=2, max_size=5, unique=True))
def test_ids_keep_the_order_of_their_numbers(numbers: list[int]) -> None:
    """Fencing tokens are producer ids: later ones are larger."""
    made = {owned_id(SECRET, number, ALICE): number for number in numbers}
    assert [made[i] for i in sorted(made)] == sorted(numbers)
    assert sorted(map(number_of, made)) == sorted(numbers)


def test_numbers_begin_anew_when_they_are_used_up() -> None:
    assert owned_id(SECRET, 2**38 + 7, ALICE) == owned_id(SECRET, 7, ALICE)


def test_owned_ids_begin_at_the_end_of_the_others() -> None:
    assert not is_owned(PRODUCER_ID_END - 1)
    assert is_owned(PRODUCER_ID_END)


@given(st.integers(-1, PRODUCER_ID_END - 1))
def test_other_ids_are_numbers(producer_id: int) -> None:
    assert not is_owned(producer_id)
    assert number_of(producer_id) == producer_id
