"""Strict decoding: the refusals are those of nats-server (Go's encoding/json), word for word."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.api import shapes
from streamd.api.decoding import decode, decode_optional, is_empty_request
from streamd.errors import JsError

# Each reason was given by a nats-server for this very body.
STREAM_REASONS = [
    (b'{"subjects":[1]}', "json: cannot unmarshal number into StreamConfigRequest.subjects.0 of "
     "type string"),
    (b'{"placement":"x"}', "json: cannot unmarshal string into Go struct field "
     "StreamConfigRequest.placement of type server.Placement"),
    (b'{"sources":[{"name":5}]}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.sources.0.name of type string"),
    (b'{"metadata":{"a":1}}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.metadata.a of type string"),
    (b'{"max_msgs":1.5}', "json: cannot unmarshal number 1.5 into Go struct field "
     "StreamConfigRequest.max_msgs of type int64"),
    (b'{"max_msgs":9999999999999999999}', "json: cannot unmarshal number 9999999999999999999 "
     "into Go struct field StreamConfigRequest.max_msgs of type int64"),
    (b'{"first_seq":-1}', "json: cannot unmarshal number -1 into Go struct field "
     "StreamConfigRequest.first_seq of type uint64"),
    (b'{"duplicate_window":"1s"}', "json: cannot unmarshal string into Go struct field "
     "StreamConfigRequest.duplicate_window of type time.Duration"),
    (b'{"max_msgs":"a","zz":1}', "json: cannot unmarshal string into Go struct field "
     "StreamConfigRequest.max_msgs of type int64"),
    (b'{"zz":1,"max_msgs":"a"}', 'json: unknown field "zz"'),
    (b'{"retention":5}', 'can not unmarshal "5"'),
    (b'{"retention":null}', 'can not unmarshal "null"'),
    (b'{"compression":"zz"}', "unknown compression algorithm"),
    (b'{"mirror":{"opt_start_time":"zz"}}', 'parsing time "zz" as "2006-01-02T15:04:05Z07:00": '
     'cannot parse "zz" as "2006"'),
    (b'{"mirror":{"opt_start_time":"2020-13-01T00:00:00Z"}}',
     'parsing time "2020-13-01T00:00:00Z": month out of range'),
    (b"[]", "json: cannot unmarshal array into Go value of type server.StreamConfigRequest"),
    (b"{", "unexpected EOF"),
    (b'{"name":"A"', "unexpected EOF"),
    (b'{"name":"A","x":"', "unexpected EOF"),
    (b'{"name":"A"} x', "invalid character 'x' looking for beginning of value at offset 14"),
    (b'{"name":"A"} 5', "json: cannot unmarshal number into Go value of type "
     "server.StreamConfigRequest"),
    (b'{"name":"A",}', "invalid character '}' looking for beginning of object key string at "
     "offset 13"),
    (b'{"name" "A"}', "invalid character '\"' after object key at offset 9"),
    (b"{'a':1}", "invalid character '\\'' looking for beginning of object key string at offset 2"),
    (b"nope", "invalid character 'o' in literal null (expecting 'u') at offset 2"),
    (b'{"name":tru}', "invalid character '}' in literal true (expecting 'e') at offset 12"),
    (b'{"name":"A\n"}', "invalid character '\\n' in string at offset 11"),
    (b'{"name":"\\q"}', "invalid escape sequence `\\q` in string at offset 11"),
    (b'{"max_msgs":-}', "invalid character '}' in numeric literal at offset 14"),
    (b'{"max_msgs":01}', "invalid character '1' after object key:value pair at offset 14"),
    (b'{"a":[1,2}', "invalid character '}' after array element at offset 10"),
    (b'{"max_msgs":1.e}', "invalid character 'e' in numeric literal at offset 15"),
    (b'{"max_msgs":1e+}', "invalid character '}' in numeric literal at offset 16"),
    (b'{"max_msgs":1.5e}', "invalid character '}' in numeric literal at offset 17"),
    (b'{"max_msgs":1.5.2}', "invalid character '.' after object key:value pair at offset 16"),
    (b'{"max_msgs":1e5.}', "invalid character '.' after object key:value pair at offset 16"),
    (b'{"subjects":["a\\u00e9\\n\\"",[],{}],"placement":{"cluster":"x"},"x":-1.5e3 5}',
     "invalid character '5' after object key:value pair at offset 74"),
    (b'{"name":"\\u00Ge"}', "invalid escape sequence `\\u00Ge` in string at offset 15"),
    (b'{"a":"\\u00', "unexpected EOF"),
    (b'{"a":["\\n"  , 1 ]  ; }', "invalid character ';' after object key:value pair at offset 20"),
    (b'{"max_msgs":NaN}', "invalid character 'N' looking for beginning of value at offset 13"),
    (b'{"retention":1.0}', 'can not unmarshal "1.0"'),
    (b'{"no_ack":1.5}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.no_ack of type bool"),
    (b'{"no_ack":5}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.no_ack of type bool"),
    (b'{"name":5.5}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.name of type string"),
    (b'{"max_msgs":true}', "json: cannot unmarshal bool into Go struct field "
     "StreamConfigRequest.max_msgs of type int64"),
    (b'{"max_msgs":{}}', "json: cannot unmarshal object into Go struct field "
     "StreamConfigRequest.max_msgs of type int64"),
    (b'{"mirror":{"opt_start_time":5}}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.mirror.opt_start_time of type time.Time"),
    (b'{"mirror":{"opt_start_time":1.5}}', "json: cannot unmarshal number into Go struct field "
     "StreamConfigRequest.mirror.opt_start_time of type time.Time"),
    (b'{"subjects":"x"}', "json: cannot unmarshal string into Go struct field "
     "StreamConfigRequest.subjects of type []string"),
    (b'{"sources":{}}', "json: cannot unmarshal object into Go struct field "
     "StreamConfigRequest.sources of type []*server.StreamSource"),
    (b'{"sources":[1.5]}', "json: cannot unmarshal number into StreamConfigRequest.sources.0 of "
     "type server.StreamSource"),
    (b'{"metadata":[]}', "json: cannot unmarshal array into Go struct field "
     "StreamConfigRequest.metadata of type map[string]string"),
    (b"\x00", "invalid character '\\x00' looking for beginning of value at offset 1"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), STREAM_REASONS)
def test_refusals_read_as_nats_servers(body: bytes, reason: str) -> None:
    with pytest.raises(JsError) as caught:
        decode(body, shapes.STREAM_CONFIG)
    assert caught.value.err_code == 10025
    assert caught.value.description == f"invalid JSON: {reason}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        (b"  ", {}),
        (b"null", {}),
        (b'{"name":null,"max_msgs":5}', {"max_msgs": 5}),
        (b'{"NAME":"A","Subjects":["a"]}', {"name": "A", "subjects": ["a"]}),
        (b'{"name":"A"}{"name":"B"}', {"name": "B"}),
        (
            b'{"metadata":{"a":null},"subjects":[null,"b"]}',
            {"metadata": {"a": ""}, "subjects": ["", "b"]},
        ),
        (b'{"name":"\xff\\ud800"}', {"name": "\ufffd\ufffd"}),
        (
            b'{"mirror":{"opt_start_time":"2020-01-01T00:00:00.50+02:00"}}',
            {"mirror": {"opt_start_time": "2020-01-01T00:00:00.5+02:00"}},
        ),
    ],
)
def test_good_requests(body: bytes, expected: dict[str, Any]) -> None:
    assert decode(body, shapes.STREAM_CONFIG) == expected


def test_absurd_bodies_are_only_refused() -> None:
    for body in (b"[" * 100_000, b'{"a":' * 50_000, b'{"max_msgs":' + b"9" * 10_000 + b"}"):
        with pytest.raises(JsError) as caught:
            decode(body, shapes.STREAM_CONFIG)
        assert caught.value.err_code == 10025


def test_lenient_decoding_skips_unknown_fields() -> None:
    assert decode(b'{"zz":1,"seq":2}', shapes.MSG_GET, is_strict=False) == {"seq": 2}


def test_empty_payloads_and_documents_are_told_apart() -> None:
    assert all(map(is_empty_request, (b"", b"{}", b" { } ")))
    assert not is_empty_request(b" ")
    assert not any(map(is_empty_request, (b"x", b"[]", b'{"a":1}')))
    for body in (b"{", b" [1]"):
        with pytest.raises(JsError):
            decode_optional(body, shapes.MSG_GET)
    for body in (b"", b"x", b'"{"'):
        assert decode_optional(body, shapes.MSG_GET) == {}
