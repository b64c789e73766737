"""What `$SYS.REQ.USER.INFO` says; tests/parity asks nats-server the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd import NATS_LEVEL
from streamd.config.cluster_options import ClusterOptions
from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.system.answers import Answers
from streamd.net.system.server_description import ServerDescription
from streamd.net.system.user_info import UserInfo
from tests.unit.net.bed import CONNECT, Bed

ASK = b"SUB in 1\r\nPUB $SYS.REQ.USER.INFO in 0\r\n\r\n"


def serve(bed: Bed, *, has_jetstream: bool) -> None:
    """Have a server answer."""
    description = ServerDescription(
        bed.options, server_id="N" + "A" * 55, server_name="bed", has_jetstream=has_jetstream
    )
    answers = Answers(
        bed.router.publish,
        description,
        Slicer(bed.clock.call_soon),
    )
    UserInfo(answers, str).serve_account(bed.subscriptions)


def as_user(**fields: str) -> bytes:
    return CONNECT.replace(b"{", json.dumps(fields)[:-1].encode() + b",", 1)


def answer_to(connect: bytes, options: Options, *, has_jetstream: bool = True) -> dict[str, Any]:
    bed = Bed(options)
    serve(bed, has_jetstream=has_jetstream)
    head, body, end = bed.peer(connect).send(ASK).split(b"\r\n")
    assert head == b"MSG in 1 %d" % len(body)
    assert not end
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_the_server_is_named() -> None:
    options = Options(cluster=ClusterOptions(name="c3", port=1))
    options.jetstream.domain = "hub"
    server = answer_to(CONNECT, options)["server"]
    assert server.pop("time").endswith("Z")
    assert not any(server.pop("feature_flags").values())
    assert server == {
        "name": "bed", "host": "0.0.0.0", "id": "N" + "A" * 55, "cluster": "c3", "domain": "hub",
        "ver": NATS_LEVEL, "jetstream": True, "flags": 1, "seq": 1,
    }  # fmt: skip
    server = answer_to(CONNECT, Options(), has_jetstream=False)["server"]
    assert (server["jetstream"], server["flags"]) == (False, 0)


RULES = Permissions(
    publish_allow=[b"x.>", b"$SYS.REQ.USER.INFO"], publish_deny=[b"x.no"],
    subscribe_deny=[b"q.> group"], allow_responses=ResponsePermission(3, 5_000_000_000),
)  # fmt: skip


@pytest.mark.parametrize(
    ("connect", "options", "data"),
    [
        (CONNECT, Options(), {"user": ""}),
        (as_user(user="anyone"), Options(), {"user": "anyone"}),
        (as_user(auth_token="s3cret"), Options(token="s3cret"), {"user": "[REDACTED]"}),
        (as_user(user="u", **{"pass": "p"}), Options(username="u", password="p"), {"user": "u"}),
        (CONNECT, Options(users=[User("anon", "x")], no_auth_user="anon"), {"user": "anon"}),
        (
            as_user(user="u", **{"pass": "p"}),
            Options(users=[User("u", "p", account="A")]),
            {"user": "u", "account": "A", "account_name": "A"},
        ),
        (
            as_user(user="u", **{"pass": "p"}),
            Options(users=[User("u", "p", RULES)]),
            {
                "user": "u",
                "permissions": {
                    "publish": {"allow": ["x.>", "$SYS.REQ.USER.INFO"], "deny": ["x.no"]},
                    "subscribe": {"deny": ["q.> group"]},
                    "responses": {"max": 3, "ttl": 5_000_000_000},
                },
            },
        ),
    ],
)
def test_the_user_is_told(connect: bytes, options: Options, data: dict[str, Any]) -> None:
    assert answer_to(connect, options)["data"] == {"account": "$G", "account_name": "$G"} | data


def test_no_question_no_answer() -> None:
    bed = Bed()
    serve(bed, has_jetstream=True)
    peer = bed.peer()
    assert peer.send(b"PUB $SYS.REQ.USER.INFO 0\r\n\r\n") == b""
    bed.router.publish(b"$SYS.REQ.USER.INFO", b"in", b"", b"")  # a server is no user
    assert peer.send(b"SUB in 1\r\n") == b""
