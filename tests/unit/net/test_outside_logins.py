"""Logins that others decide upon: connections that wait, tokens of users, changes of accounts."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamd.config.account_options import default_accounts
from streamd.config.operator_options import OperatorOptions
from streamd.config.options import Options, User
from streamd.errors import TokenError
from streamd.net.account_tokens.resolvers import MemoryResolver
from streamd.net.accounts.account_spaces import Accounts
from streamd.net.client.auth import (
    Approach,
    Authenticator,
    Consultation,
    Identity,
    Refusal,
    TokenFacts,
    Verdict,
)
from streamd.net.client.login_expiry import LoginExpiry
from streamd.net.logins.callout_requests import CalloutRequests
from streamd.net.logins.consultations import Consultations
from streamd.net.logins.live_logins import LiveLogins
from streamd.net.logins.server_keys import ServerKeys
from streamd.net.logins.tls_claims import tls_claims
from streamd.net.logins.token_accounts import TokenAccounts
from streamd.net.logins.token_logins import TokenLogins
from streamd.net.tls.facts import PeerCertificate, Subject, TlsFacts
from streamd.obs.server_log import Log
from streamd.protocol.connect_options import ConnectOptions
from streamd.tokens.claims import decode_operator
from streamd.tokens.nkeys import is_valid_public
from streamd.tokens.validation import Trust
from tests.minted_tokens import (
    ACCOUNT,
    OTHER_ACCOUNT,
    SERVER,
    SYSTEM,
    USER,
    account,
    connect_options,
    operator,
    user,
)
from tests.unit.net.bed import Bed, Clock, Peer

NOW_S = int(time.time())
USERS = Options(users=[User("u", "p")])


class Judge:
    """Outside judge whose verdicts the test gives."""

    needs_nonce = True

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def judge(
        self, connect: ConnectOptions, approach: Approach, configured: Authenticator
    ) -> Verdict | Consultation:
        if connect.get("user") == "known":
            return configured.admit(Identity("known"))
        return Consultation(self.waiting.append)

    def answer(self, verdict: Verdict) -> None:
        self.waiting.pop(0)(verdict)


class World(Bed):
    def __init__(self, judge: Any, options: Options = USERS) -> None:
        super().__init__(options)
        policy = self.listener.policy
        policy.auth = Authenticator(options, outside=judge)


def said(**options: Any) -> bytes:
    given = {"verbose": False, "pedantic": False, **options}
    return b"CONNECT " + json.dumps(given).encode() + b"\r\n"


def test_events_behind_an_undecided_login_wait_and_others_do_not() -> None:
    judge = Judge()
    world = World(judge)
    waiting, known = world.peer(said(user="x")), world.peer(said(user="known"))
    assert b'"nonce":' in waiting.info
    assert waiting.send(b"SUB a 1\r\nPUB a 1\r\n1\r\nPING\r\n") == b""
    world.clock.advance(10)  # the time for logins is over; those who decide have their own
    known.take()
    assert known.send(b"SUB b 1\r\nPUB b 1\r\n2\r\n") == b"MSG b 1 1\r\n2\r\n"
    judge.answer(Identity("x"))
    assert b"MSG a 1 1\r\n1\r\nPONG" in waiting.take()
    assert waiting.conn.user == "x" and not waiting.conn.is_being_checked


def test_a_refusal_ends_the_connection_and_what_waited_is_dropped() -> None:
    judge = Judge()
    world = World(judge)
    peer = world.peer(said(user="x") + b"PUB a 1\r\n1\r\n")
    judge.answer(Refusal("no such luck", account="A"))
    assert peer.take() == b"-ERR 'Authorization Violation'\r\n"
    assert peer.conn.reason == "Authentication Failure"
    assert peer.conn.profile.refusal == Refusal("no such luck", account="A")


def test_a_verdict_for_a_client_that_has_gone_is_ignored() -> None:
    judge = Judge()
    peer = World(judge).peer(said(user="x"))
    peer.leave()
    judge.answer(Identity("x"))
    assert peer.conn.is_closed and peer.conn.user == ""


def test_a_reload_asks_again() -> None:
    judge = Judge()
    world = World(judge)
    peer = world.peer(said(user="x"))
    judge.answer(Identity("x"))
    world.listener.reload(Options(users=[User("u", "q")]))
    assert peer.send(b"PING\r\n").endswith(b"PONG\r\n")  # it is served meanwhile
    judge.answer(Refusal("not any more"))
    assert b"Authorization Violation" in peer.take()


def test_the_limits_of_a_token_hold() -> None:
    judge = Judge()
    world = World(judge)
    facts = TokenFacts(max_payload=2, max_subscriptions=1, expires_ns=time.time_ns() - 1)
    peers = [world.peer(said(user="x")) for _ in range(2)]
    for _ in peers:
        judge.answer(Identity("x", token=facts))
    assert b"maximum subscriptions exceeded" in peers[0].send(b"SUB a 1\r\nSUB b 2\r\n")
    assert b"Maximum Payload Violation" in peers[0].send(b"PUB a 3\r\n123\r\n")
    world.clock.advance(0.1)
    assert b"-ERR 'User Authentication Expired'" in peers[1].take()


def test_an_end_far_away_is_looked_at_now_and_then() -> None:
    """So that it is met though the clock is set meanwhile."""
    clock, ended, now_ns = Clock(), [], 1_000 * 10**9
    expiry = LoginExpiry(clock.call_later, lambda: ended.append(1), lambda: now_ns)
    expiry.start(now_ns + 100_000 * 10**9)
    clock.advance(3000)
    assert ended == []
    now_ns += 200_000 * 10**9
    clock.advance(1000)
    assert ended == [1]
    expiry.start(now_ns + 10**9)
    expiry.close()
    now_ns += 2 * 10**9
    clock.advance(10_000)
    assert ended == [1]


def test_a_server_that_asks_nobody_has_an_id_and_no_keys() -> None:
    plain, asking = ServerKeys(signs=False), ServerKeys(signs=True)
    for keys in (plain, asking):
        assert is_valid_public(SERVER.kind, keys.server_id)
    assert plain.xkey_public == "" and asking.xkey_public.startswith("X")
    assert asking.pair.public == asking.server_id


@pytest.mark.parametrize("is_verified", [False, True])
def test_a_service_sees_certificates_as_chains_if_they_were_verified(is_verified: bool) -> None:
    subject = Subject("CN=a", "CN=a", None, "")
    shown = PeerCertificate(subject, (), (), "", "", der=b"der")
    plain = {"version": "1.3", "cipher": "C"}
    assert tls_claims(TlsFacts("1.3", "C", (), is_verified=is_verified)) == plain
    pem = ssl.DER_cert_to_PEM_cert(b"der")
    wanted = {"verified_chains": [[pem]]} if is_verified else {"certs": [pem]}
    assert tls_claims(TlsFacts("1.3", "C", (shown,), is_verified=is_verified)) == plain | wanted


# --- tokens ---


class Operated:
    """A listener in operator mode, with accounts in memory."""

    def __init__(self, preload: dict[str, str], sentinel: str = "") -> None:
        options = Options(
            accounts=default_accounts(), operators=OperatorOptions(tokens=(operator(),))
        )
        self.resolver = MemoryResolver(preload)
        self.accounts = Accounts(options.accounts, SYSTEM.public)
        self._tasks: set[asyncio.Task[None]] = set()
        self.linked: list[list[str]] = []
        trust = Trust.of([decode_operator(operator())])
        self.world = World(None, options)
        self.accounts.output_queue.clock = self.world.clock.time
        self.world.listener.spaces = self.accounts
        open_connections = self.world.listener.registry.open
        self.live = LiveLogins(
            open_connections, lambda name: self.accounts.obtain(name).cids, self.accounts.hold
        )
        self.accounts.counts.end_client = lambda cid: open_connections[cid].close(
            "Maximum Account Connections Exceeded"
        )
        self.tokens = TokenAccounts(
            self.resolver,
            trust,
            self.accounts,
            self.live,
            Log(),
            link=lambda names: self.linked.append(sorted(names)),
            now_ns=time.time_ns,
            call_later=self.world.clock.call_later,
        )
        callouts = CalloutRequests(
            ServerKeys(signs=True), self.accounts.router, dict, lambda: options
        )
        judge = TokenLogins(
            self.tokens, callouts, Consultations(self.create_task), time.time_ns, sentinel
        )
        self.world.listener.policy.auth = Authenticator(options, outside=judge)

    def create_task(self, work: Coroutine[Any, Any, None], *, name: str) -> object:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def enter(self, token: str) -> Peer:
        peer = self.world.peer(None)
        nonce = json.loads(peer.info[5:])["nonce"]
        peer.conn.data_received(said(**connect_options(token, nonce)) + b"PING\r\n")
        while self._tasks:
            await asyncio.wait(self._tasks)
        return peer


@asynccontextmanager
async def operated(*tokens: tuple[Any, str]) -> AsyncIterator[Operated]:
    bed = Operated({pair.public: token for pair, token in tokens})
    yield bed
    bed.tokens.close()


def test_an_account_comes_with_its_first_login() -> None:
    """Two who come at once have it looked up once; the next is judged at once."""

    async def body() -> None:
        async with operated((ACCOUNT, account())) as bed:
            assert bed.accounts.get(ACCOUNT.public) is None
            peer = await bed.enter(user(pub={"allow": ["yes"]}))
            assert b"PONG" in peer.take()
            assert bed.linked == [[ACCOUNT.public]]
            assert b"Permissions Violation" in peer.send(b"PUB no 0\r\n\r\n")
            identity = peer.conn.profile.identity
            assert identity is not None and not identity.may_administer(b"$JS.API.META.X")
            assert b"PONG" in (await bed.enter(user())).take()
            refused = await bed.enter(user(issuer=OTHER_ACCOUNT))
            assert b"Authorization Violation" in refused.take()
            reason = refused.conn.profile.refusal
            assert reason is not None and reason.reason.endswith("error: account missing")

    asyncio.run(body())


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({}, b""),
        (
            {"revocations": {USER.public: NOW_S + 100_000}},
            b"-ERR 'User Authentication Revoked'\r\n",
        ),
        ({"issuer": SYSTEM}, b""),
        ({"default_permissions": {"sub": {"deny": ["a"]}}}, b"-ERR 'Permissions Violation for"),
    ],
    ids=["nothing", "revoked", "a stranger's", "permissions"],
)
def test_an_update_is_in_force_when_it_is_answered(after: dict[str, Any], told: bytes) -> None:
    async def body() -> None:
        async with operated((ACCOUNT, account())) as bed:
            peer = await bed.enter(user())
            peer.send(b"SUB a 1\r\n")
            peer.take()
            try:
                bed.tokens.loader.update(ACCOUNT.public, account(**after))
            except TokenError:
                assert "issuer" in after
            assert peer.take()[: len(told)] == told

    asyncio.run(body())


def test_an_account_that_goes_ends_its_clients_and_a_reload_judges_them() -> None:
    async def body() -> None:
        async with operated((ACCOUNT, account()), (OTHER_ACCOUNT, account(OTHER_ACCOUNT))) as bed:
            first = await bed.enter(user())
            second = await bed.enter(user(issuer=OTHER_ACCOUNT))
            first.take(), second.take()
            bed.tokens.loader.forget(ACCOUNT.public)
            assert b"Account Authentication Expired" in first.take()
            bed.tokens.drop(OTHER_ACCOUNT.public)
            assert second.take() == b"" and bed.accounts.get(OTHER_ACCOUNT.public) is None

    asyncio.run(body())


def test_an_account_whose_token_is_over_is_looked_up_again() -> None:
    async def body() -> None:
        async with operated((ACCOUNT, account(exp=NOW_S + 100_000))) as bed:
            peer = await bed.enter(user())
            peer.take()
            bed.live.expire(ACCOUNT.public)
            assert b"Account Authentication Expired" in peer.take()
            claims = bed.tokens.loader.get(ACCOUNT.public)
            assert claims is not None
            bed.tokens._now_ns = lambda: (NOW_S + 200_000) * 10**9
            assert bed.tokens.get(ACCOUNT.public) is None
            bed.resolver.replace({ACCOUNT.public: account(name="new")})
            fresh = await bed.tokens.load(ACCOUNT.public)
            assert fresh.registered.name == "new"

    asyncio.run(body())


def test_what_other_nodes_name_is_looked_up() -> None:
    """Who waits for it is called then; for a name that is no key, and an account that is there,
    at once."""

    async def body() -> None:
        async with operated((ACCOUNT, account())) as bed:
            called: list[str] = []
            running = asyncio.get_running_loop().create_task(bed.tokens.run())
            bed.accounts.when_settled("$G", lambda: called.append("$G"))
            bed.accounts.when_settled(ACCOUNT.public, lambda: called.append("a"))
            assert called == ["$G"]
            bed.accounts.obtain(OTHER_ACCOUNT.public)  # and is not there
            async with asyncio.timeout(10):
                while "a" not in called:
                    await asyncio.sleep(0)
            bed.accounts.when_settled(ACCOUNT.public, lambda: called.append("again"))
            assert called == ["$G", "a", "again"]
            assert bed.accounts.get(ACCOUNT.public) is not None
            bed.resolver.replace({OTHER_ACCOUNT.public: account(OTHER_ACCOUNT)})
            bed.world.clock.advance(60)
            async with asyncio.timeout(10):
                while bed.accounts.get(OTHER_ACCOUNT.public) is None:
                    await asyncio.sleep(0)
            running.cancel()

    asyncio.run(body())


def test_so_many_logins_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind the bound come in turn; beyond that bound they are refused."""
    from streamd.net.logins import consultations

    monkeypatch.setattr(consultations, "CONSULTATIONS_MAX", 1)
    monkeypatch.setattr(consultations, "CONSULTATIONS_WAITING_MAX", 1)

    async def body() -> None:
        is_open = asyncio.Event()
        found: list[Verdict] = []
        tasks: list[asyncio.Task[None]] = []

        async def decide() -> Verdict:
            await is_open.wait()
            return Identity("x")

        def create_task(work: Coroutine[Any, Any, None], *, name: str) -> object:
            tasks.append(asyncio.get_running_loop().create_task(work, name=name))
            return tasks[-1]

        bounded = Consultations(create_task)
        for _ in range(3):
            bounded.of(decide).begin(found.append)
        await asyncio.sleep(0)
        assert [type(each) for each in found] == [Refusal]
        is_open.set()
        await asyncio.wait(tasks)
        assert [type(each) for each in found] == [Refusal, Identity, Identity]

    asyncio.run(body())
