"""Auth callout: a real nats-server asks, answers made here are judged here as it judges them.

Its question is read, made again from the same facts, and compared; each case is an answer, and the
server's warning, or the client's login, is what `read_response` and `place_in_account` say.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.errors import TokenError
from streamd.tokens.auth_callout import (
    AUDIENCE,
    SUBJECT,
    XKEY_HEADER,
    CalloutPolicy,
    CalloutRefused,
    Question,
    place_in_account,
    read_response,
    request_token,
)
from streamd.tokens.claims import (
    AuthorizationRequestClaims,
    decode_authorization_request,
)
from streamd.tokens.nkeys import KeyKind
from streamd.tokens.validation import Grant
from streamd.tokens.xkeys import CurveKeyPair, is_sealed
from tests.minted_tokens import ACCOUNT, OTHER_ACCOUNT, REVOKED_USER, SERVER, UNLIMITED, mint
from tests.parity.runner import peer_binary
from tests.wire import CONNECT, Wire

SERVICE_XKEY = CurveKeyPair(bytes(range(32)))
CONFIG = f"""
accounts {{
  AUTH {{ users: [{{user: auth, password: p}}] }}
  APP {{ users: [] }}
}}
authorization {{
  timeout: 3
  auth_callout {{ issuer: {ACCOUNT.public}, auth_users: [auth], account: AUTH XKEY }}
}}
debug: true
"""
Make = Callable[[AuthorizationRequestClaims], bytes]


def _user(question: AuthorizationRequestClaims, **claims: Any) -> str:
    issuer = claims.pop("issuer", ACCOUNT)
    subject = claims.pop("sub", question.user_nkey)
    claims.setdefault("aud", "APP")
    for limit in ("subs", "data", "payload"):
        claims.setdefault(limit, -1)
    return mint("user", subject, issuer, name="bob", **claims)


def _answer(question: AuthorizationRequestClaims, **claims: Any) -> bytes:
    issuer = claims.pop("issuer", ACCOUNT)
    subject = claims.pop("sub", question.user_nkey)
    claims.setdefault("aud", question.content["server_id"]["id"])
    return mint("authorization_response", subject, issuer, **claims).encode()


def _of_user(**claims: Any) -> Make:
    return lambda question: _answer(question, jwt=_user(question, **claims))


NOW_S = int(time.time())
CASES: dict[str, Make] = {
    "a user": _of_user(),
    "permissions": _of_user(pub={"allow": ["$SYS.REQ.USER.INFO", "a.>"]}, exp=NOW_S + 100_000),
    "nothing": lambda question: b"",
    "no token": lambda question: b"x",
    "an error": lambda question: _answer(question, error="not you"),
    "both": lambda question: _answer(question, error="not you", jwt="x"),
    "neither": lambda question: _answer(question),
    "another server": lambda question: _answer(question, aud=SERVER.public, jwt=_user(question)),
    "no server": lambda question: _answer(question, aud="x", jwt=_user(question)),
    "another user's answer": lambda question: _answer(
        question, sub=REVOKED_USER.public, jwt=_user(question)
    ),
    "an answer that is over": lambda question: _answer(question, exp=5, jwt=_user(question)),
    "another signer": lambda question: _answer(question, issuer=OTHER_ACCOUNT, jwt=_user(question)),
    "another user": _of_user(sub=REVOKED_USER.public),
    "another issuer": _of_user(issuer=OTHER_ACCOUNT),
    "an issuer account": _of_user(issuer_account=ACCOUNT.public),
    "no account": _of_user(aud="NOPE"),
    "a user that is over": _of_user(exp=5),
    "a user with bad subjects": _of_user(pub={"allow": ["a..b"]}),
    "a closed window": _of_user(times=[{"start": "00:00:00", "end": "00:00:01"}]),
    "an unknown way to connect": _of_user(allowed_connection_types=["FOO"]),
    "another way to connect": _of_user(allowed_connection_types=["WEBSOCKET"]),
    "a token that is no user's": lambda question: _answer(question, jwt="x"),
    "a revoked account's claims": lambda question: _answer(
        question, jwt=mint("account", ACCOUNT.public, ACCOUNT, limits=UNLIMITED)
    ),
}


class Service:
    """Answers questions of one server, in a thread; remembers the last one and its answer."""

    def __init__(self, port: int, offer: Callable[[str], dict[str, Any]] | None = None) -> None:
        """`offer` returns what the service logs in with, by its nonce."""
        self.make: Make = CASES["a user"]
        self.seals = False
        self.question: AuthorizationRequestClaims | None = None
        self.headers: dict[str, str] = {}
        self.reply = ""
        self.answer = b""
        self._wire = Wire(port, None)
        credentials = {"user": "auth", "pass": "p"}
        if offer is not None:
            credentials = offer(self._wire.info["nonce"])
        self._wire.send(f"CONNECT {json.dumps(CONNECT | credentials)}\r\n".encode())
        self._wire.subscribe(SUBJECT)
        assert self._wire.fence() == []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(5)
        self._wire.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                frame = self._wire.next(0.2)
            except TimeoutError:
                continue
            if frame.op != "MSG":
                return
            self.headers, self.reply = frame.pairs, frame.reply
            payload = frame.payload
            if XKEY_HEADER in self.headers:
                assert is_sealed(payload)
                payload = SERVICE_XKEY.open(payload, self.headers[XKEY_HEADER])
            self.question = decode_authorization_request(payload.decode())
            self.answer = self.make(self.question)
            if self.seals:
                nonce = os.urandom(24)
                self.answer = SERVICE_XKEY.seal(self.answer, self.headers[XKEY_HEADER], nonce)
            self._wire.publish(frame.reply, self.answer)


def _serve(directory: Path, xkey: str) -> Iterator[tuple[ServerProcess, Service]]:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    config = CONFIG.replace("XKEY", f", xkey: {xkey}" if xkey else "")
    with ServerProcess(peer_binary(), directory=directory, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait_for_log("Server is ready")  # clients are answered by the service only
        service = Service(one.port)
        try:
            yield one, service
        finally:
            service.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Service]]:
    yield from _serve(tmp_path_factory.mktemp("callout"), "")


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Service]]:
    yield from _serve(tmp_path_factory.mktemp("sealed"), SERVICE_XKEY.public)


def _judge(service: Service, policy: CalloutPolicy) -> Grant | str:
    question = service.question
    assert question is not None
    asked = Question(question.user_nkey, question.content["server_id"]["id"])
    try:
        answer = read_response(service.answer, policy, asked, now_ns=time.time_ns())
        return place_in_account(answer, policy, is_known=answer.account in ("APP", "AUTH"))
    except CalloutRefused as err:
        return str(err)


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_judged_as_by_nats_server(
    case: str, plain: tuple[ServerProcess, Service]
) -> None:
    server, service = plain
    service.make = CASES[case]
    logged_before = server.log_file.read_text()
    with Wire(server.port, CONNECT | {"user": "bob", "pass": "x"}, is_ready=False) as wire:
        answer = wire.fence()
        ours = _judge(service, CalloutPolicy("AUTH", ACCOUNT.public))
        if isinstance(ours, Grant):
            assert answer == []
            told = wire.ask("$SYS.REQ.USER.INFO")[0].json()["data"]
            assert (told["account"], told["user"]) == (ours.account, ours.name)
            allowed = told.get("permissions", {}).get("publish", {}).get("allow", [])
            listed = ours.permissions.publish_allow if ours.permissions else []
            assert sorted(allowed) == sorted(each.decode() for each in listed or [])
            return
    assert [frame.text for frame in answer if frame.op == "-ERR"] == ["'Authorization Violation'"]
    warning = f"[WRN] {ours}\n"
    server.wait_for_log(warning, 5, count=logged_before.count(warning) + 1)


@pytest.mark.parametrize("seals", [False, True], ids=["plain", "sealed"])
def test_questions_are_sealed_for_the_service(
    seals: bool, sealing: tuple[ServerProcess, Service]
) -> None:
    server, service = sealing
    service.seals, service.make = seals, CASES["a user"]
    with Wire(server.port, CONNECT | {"user": "bob", "pass": "x"}, is_ready=False) as wire:
        assert wire.info["xkey"] == service.headers.get(XKEY_HEADER, wire.info["xkey"])
        assert wire.fence() == []
    assert service.question is not None
    assert service.question.content["server_id"]["xkey"] == wire.info["xkey"]


@pytest.mark.parametrize(
    "options",
    [
        {"user": "bob", "pass": "x", "name": "n"},
        {"auth_token": "secret"},
        {"jwt": "eyJx", "nkey": REVOKED_USER.public, "sig": "abc"},
    ],
    ids=["user", "token", "nkey"],
)
def test_a_question_is_made_as_by_nats_server(
    options: dict[str, Any], plain: tuple[ServerProcess, Service]
) -> None:
    """All fields but those of the moment, from what CONNECT and the socket say."""
    server, service = plain
    service.make = CASES["a user"]
    with Wire(server.port, CONNECT | options, is_ready=False) as wire:
        wire.fence()
        info = wire.info
    theirs = service.question
    assert theirs is not None
    content = json.loads(json.dumps(theirs.content))
    made = request_token(
        SERVER,
        CalloutPolicy("AUTH", ACCOUNT.public),
        Question(theirs.user_nkey, info["server_id"]),
        server={
            "name": info["server_name"], "host": info["host"], "version": info["version"],
            "cluster": "", "tags": [],
        },
        client={
            "host": "127.0.0.1", "id": info["client_id"], "kind": "Client", "type": "nats",
            "user": options.get("user") or options.get("nkey", ""),
            "name": options.get("name", ""), "nonce": info.get("nonce", ""),
        },
        connect=CONNECT | options,
        now_s=theirs.registered.issued_s,
        timeout_s=3,
    )  # fmt: skip
    ours = decode_authorization_request(made)
    assert ours.registered.subject == theirs.registered.subject
    assert ours.registered.audience == theirs.registered.audience == AUDIENCE
    assert abs(ours.registered.expires_s - theirs.registered.expires_s) <= 1
    assert json.loads(json.dumps(ours.content)) == content


def test_a_stranger_asks_nothing() -> None:
    """Only servers sign questions."""
    with pytest.raises(TokenError, match="expected prefixes"):
        decode_authorization_request(
            mint("authorization_request", ACCOUNT.public, ACCOUNT, user_nkey=REVOKED_USER.public)
        )
    assert SERVER.kind is KeyKind.SERVER
