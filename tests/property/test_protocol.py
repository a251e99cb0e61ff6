"""Properties of frames and messages: round trip, and garbage gives the documented errors only."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from sparklog.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from sparklog.protocol import frames as f
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_request, decode_response, encode
from tests.golden.make_golden import REQUESTS, RESPONSES
from tests.support.cases import for_each

I16 = st.integers(-(2**15), 2**15 - 1)
ITEMS_MAX = 4
few = settings(max_examples=settings.default.max_examples // 4)  # type: ignore[union-attr]
"""Of each of 80 messages: they share the code that is examined."""


def strategy_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Everything a field of this type may hold, as its declaration says."""
    match kind:
        case inspect.IntType(ge=ge, le=le):
            return st.integers(-(2**63) if ge is None else ge, 2**63 - 1 if le is None else le)
        case inspect.StrType(max_length=most, min_length=least):
            return st.text(min_size=least or 0, max_size=min(300 if most is None else most, 300))
        case inspect.BytesType():
            return st.binary(max_size=50)
        case inspect.BoolType():
            return st.booleans()
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return st.text(max_size=20) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)
        case inspect.ListType(item_type=item, min_length=least):
            return st.lists(strategy_of(item), min_size=least or 0, max_size=ITEMS_MAX)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(strategy_of, items))
        case inspect.VarTupleType(item_type=item):
            return st.lists(strategy_of(item), max_size=ITEMS_MAX).map(tuple)
        case inspect.DictType(key_type=key, value_type=value, min_length=least):
            return st.dictionaries(strategy_of(key), strategy_of(value), min_size=least or 0, max_size=ITEMS_MAX)
        case inspect.UnionType(types=types):
            return st.one_of(*[strategy_of(t) for t in types])
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, *[strategy_of(f.type) for f in fields])
    raise AssertionError(f"no strategy for {kind}")


REQUEST = {api: strategy_of(inspect.type_info(spec.request)) for api, spec in APIS.items()}
RESPONSE = {api: strategy_of(inspect.type_info(spec.response)) for api, spec in APIS.items()}


@for_each("api", Api)
def test_request_round_trip(api: Api) -> None:
    @few
    @given(REQUEST[api], st.integers(0, 2**32 - 1), st.integers(0, 2**20))
    def check(message: Message, correlation_id: int, payload_bytes: int) -> None:
        header = encode(message)
        version = APIS[api].version_max
        data = f.encode_request(api, version, correlation_id, header, payload_bytes)
        prefix = f.decode_request_prefix(data, 1 << 30)
        assert prefix == (api, version, correlation_id, len(header), len(header) + payload_bytes)
        assert decode_request(prefix.api, prefix.version, memoryview(data)[f.PREFIX_BYTES :]) == message  # type: ignore[attr-defined]

    check()


@for_each("api", Api)
def test_response_round_trip(api: Api) -> None:
    @few
    @given(RESPONSE[api], I16, st.integers(0, 2**32 - 1))
    def check(message: Message, code: int, correlation_id: int) -> None:
        header = encode(message)
        data = f.encode_response(api, code, correlation_id, header, 7)
        prefix = f.decode_response_prefix(data, 1 << 30)
        assert prefix == (api, code, correlation_id, len(header), len(header) + 7)
        assert decode_response(api, data[f.PREFIX_BYTES :], type(message)) == message

    check()


@given(st.binary(max_size=40), st.integers(0, 2**32))
def test_a_prefix_of_random_bytes(data: bytes, limit: int) -> None:
    for decode in (f.decode_request_prefix, f.decode_response_prefix):
        try:
            prefix = decode(data, limit)
        except (FrameTooLargeError, InvalidRequestError):
            continue
        assert 0 <= prefix.header_bytes <= prefix.body_bytes <= limit - 12
        assert prefix.header_bytes <= f.HEADER_BYTES_MAX


@given(st.integers(-2, max(Api)), st.integers(-1, 2), st.binary(max_size=200))
def test_a_request_of_random_bytes(api: int, version: int, data: bytes) -> None:
    try:
        message = decode_request(api, version, data)
    except (InvalidRequestError, UnsupportedApiError, UnsupportedVersionError) as e:
        assert str(e)
    else:
        assert type(message) is APIS[Api(api)].request


@given(st.sampled_from(list(Api)), st.data())
def test_a_damaged_message(api: Api, data: st.DataObject) -> None:
    for message in (REQUESTS[api], RESPONSES[api]):
        header = bytearray(encode(message))
        at = data.draw(st.integers(0, len(header) - 1))
        new = data.draw(st.binary(min_size=1, max_size=6))
        header[at : at + len(new)] = new
        cut = bytes(header[: data.draw(st.integers(0, len(header)))])
        for damaged in (bytes(header), cut):
            try:
                if message is REQUESTS[api]:
                    found = decode_request(api, APIS[api].version_max, damaged)
                else:
                    found = decode_response(api, damaged, type(message))
            except InvalidRequestError as e:
                assert api.name in str(e)
            else:
                assert type(found) is type(message)


@given(st.binary(max_size=100))
def test_an_error_text_of_random_bytes(data: bytes) -> None:
    assert isinstance(decode_error(data), str)
