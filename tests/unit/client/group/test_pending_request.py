"""A request on a thread of its own: its outcome is the answer or the error."""

from __future__ import annotations

import threading

import pytest

from sparklog.client.group.pending_request import PendingRequest
from sparklog.errors import NotCoordinatorError


def test_the_outcome_is_the_answer_or_the_error() -> None:
    def fail() -> int:
        raise NotCoordinatorError("it moved")

    for ask in (lambda: 7, fail):
        is_called = threading.Event()
        request = PendingRequest(ask, is_called.set)
        assert is_called.wait(60)
        assert request.is_answered
        if ask is fail:
            with pytest.raises(NotCoordinatorError, match="it moved"):
                request.answer()
        else:
            assert request.answer() == 7
