"""Rule of repeated changes: the errors after which a change is requested again, and those that prove it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.admin.repeating import UNCLEAR, NextStep, RepeatPolicy
from sparklog.errors import (
    ERRORS,
    BrokerNotAvailableError,
    InvalidPartitionsError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

GONE = UnknownTopicOrPartitionError
errors = st.sampled_from(sorted(ERRORS.values(), key=lambda c: c.code)).map(lambda c: c("as drawn"))
attempts = st.lists(st.tuples(errors, st.booleans()), max_size=8)


def test_a_refusal_after_an_unclear_attempt_means_that_the_change_took_effect() -> None:
    assert RepeatPolicy((GONE,)).after(GONE("no"), sent=True) is NextStep.RAISE
    deletion = RepeatPolicy((GONE,))
    assert deletion.after(BrokerNotAvailableError("cut"), sent=True) is NextStep.AGAIN
    assert deletion.after(GONE("no"), sent=True) is NextStep.LOOK
    assert deletion.after(InvalidPartitionsError("no"), sent=True) is NextStep.RAISE


def test_a_change_that_was_not_sent_is_repeated_and_had_no_effect() -> None:
    for creation in (RepeatPolicy((TopicAlreadyExistsError,)), RepeatPolicy((TopicAlreadyExistsError,), once=True)):
        assert creation.after(BrokerNotAvailableError("refused"), sent=False) is NextStep.AGAIN
        assert creation.after(TopicAlreadyExistsError("another one"), sent=True) is NextStep.RAISE
    assert RepeatPolicy(once=True).after(BrokerNotAvailableError("cut"), sent=True) is NextStep.RAISE


@given(attempts, st.sampled_from([(), (GONE,), (GONE, InvalidPartitionsError)]), st.booleans())
def test_the_outcome_of_any_attempts(
    failed: list[tuple[SparklogError, bool]], made_if: tuple[type[SparklogError], ...], once: bool
) -> None:
    repeating, was_unclear = RepeatPolicy(made_if, once=once), False
    for error, sent in failed:
        following = repeating.after(error, sent=sent)
        if following is NextStep.LOOK:
            assert was_unclear and isinstance(error, made_if)
        if following is NextStep.AGAIN:
            assert isinstance(error, UNCLEAR) and error.retriable and not (once and sent)
        if isinstance(error, UNCLEAR) and not (once and sent):
            assert following is NextStep.AGAIN
        was_unclear |= following is NextStep.AGAIN and sent
        assert repeating.is_unclear == was_unclear
        if following is NextStep.RAISE:
            return
