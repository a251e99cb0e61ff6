"""Checks of answers."""

from __future__ import annotations

import pytest

from sparklog.client.net.answers import identity_of
from sparklog.errors import InvalidRequestError
from sparklog.protocol.transaction_messages import InitProducerIdResponse
from sparklog.types import ProducerIdAndEpoch


def test_an_identity_fits_into_a_batch() -> None:
    """Found by a campaign: an epoch of more than 16 bits ended the producer's thread in struct.error."""
    for identity in ((0, 0), (2**63 - 1, 2**15 - 1)):
        assert identity_of(InitProducerIdResponse(*identity)) == ProducerIdAndEpoch(*identity)
    for identity in ((-1, 0), (0, -1), (0, 2**15), (2**63, 0)):
        with pytest.raises(InvalidRequestError, match="which no producer can have"):
            identity_of(InitProducerIdResponse(*identity))
