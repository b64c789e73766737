"""Sessions and logins of the dashboard: who gets in, as what, for how long."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import bcrypt
import pytest

from streamd import limits
from streamd.config.http_options import HttpLogins, HttpUser
from streamd.config.options import Options, Permissions, User
from streamd.net.client.auth import Identity, TokenFacts
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.dashboard.doorkeeper import is_from_here
from streamd.net.dashboard.grants import OPEN, Grant, grant_of
from streamd.net.dashboard.logins import Busy, Logins
from streamd.net.dashboard.sessions import Sessions
from streamd.net.dashboard.throttle import LoginThrottle

ALICE = User("alice", "a", account="A")
ROOT = User("root", "r", account="$SYS")
META = User("meta", "m", Permissions(publish_allow=[b"$JS.API.META.>", b"x"]), account="A")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def logins(options: Options) -> Logins:
    return Logins(options, lambda: None, PasswordChecks())


def log_in(judge: Logins, name: str = "", password: str = "", token: str = "") -> Grant | None:
    return asyncio.run(judge.log_in(name, password, token, "10.0.0.1"))


# --- sessions --------------------------------------------------------------------------------


def test_a_session_ends_when_it_is_unused_or_old() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    secret, session = sessions.begin(OPEN)
    assert sessions.find(secret) is session
    assert sessions.find(secret + "x") is None
    while clock.now_s < 100 + limits.DASHBOARD_SESSION_S - limits.DASHBOARD_SESSION_IDLE_S:
        clock.now_s += limits.DASHBOARD_SESSION_IDLE_S - 1
        assert sessions.find(secret) is session  # which uses it
    clock.now_s += limits.DASHBOARD_SESSION_IDLE_S - 1
    assert sessions.find(secret) is None and session.is_ended
    secret, session = sessions.begin(OPEN)
    clock.now_s += limits.DASHBOARD_SESSION_IDLE_S
    assert sessions.find(secret) is None and len(sessions) == 0


def test_sessions_are_bounded_and_the_one_unused_for_longest_gives_way() -> None:
    sessions = Sessions(Clock())
    first, oldest = sessions.begin(OPEN)
    second, kept = sessions.begin(OPEN)
    told: list[str] = []
    kept.watch(lambda: told.append("kept"))
    token = oldest.watch(lambda: told.append("wrong"))
    oldest.unwatch(token)
    oldest.watch(lambda: told.append("oldest"))
    for _ in range(limits.DASHBOARD_SESSIONS_MAX - 2):
        sessions.begin(OPEN)
    assert sessions.find(second) is kept
    sessions.begin(OPEN)
    assert len(sessions) == limits.DASHBOARD_SESSIONS_MAX
    assert sessions.find(first) is None and told == ["oldest"]
    sessions.end(second)
    assert told == ["oldest", "kept"]


def test_the_second_secret_is_another_one_for_each_session() -> None:
    sessions = Sessions(Clock())
    (secret, one), (_, other) = sessions.begin(OPEN), sessions.begin(OPEN)
    assert one.has_csrf(one.csrf)
    assert not one.has_csrf(other.csrf) and not one.has_csrf("") and not one.has_csrf(secret)
    assert not one.has_csrf("\udcff")  # a byte that is no UTF-8, as a header may hold it


def test_failed_logins_have_their_address_wait_longer_and_longer() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(limits.DASHBOARD_FREE_FAILURES):
        throttle.begin("a")
        assert throttle.wait_s("a") == 0
    waits = []
    for _ in range(8):
        throttle.begin("a")
        waits.append(throttle.wait_s("a"))
    assert waits[:3] == [1.0, 2.0, 4.0] and waits[-1] == limits.DASHBOARD_PENALTY_S_MAX
    assert throttle.wait_s("b") == 0
    clock.now_s += limits.DASHBOARD_PENALTY_S_MAX
    assert throttle.wait_s("a") == 0
    clock.now_s += limits.DASHBOARD_FORGIVEN_S
    throttle.begin("a")
    assert throttle.wait_s("a") == 0
    for number in range(limits.DASHBOARD_SOURCES_MAX + 9):
        throttle.begin(str(number))
    assert len(throttle._sources) == limits.DASHBOARD_SOURCES_MAX


def test_a_login_of_ones_own_between_guesses_is_no_way_around() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for guess in range(2 * limits.DASHBOARD_FREE_FAILURES):
        throttle.begin("a")
        if guess >= limits.DASHBOARD_FREE_FAILURES:
            assert throttle.wait_s("a") > 0
        clock.now_s += throttle.wait_s("a")
        throttle.begin("a")
        throttle.succeed("a")
        assert throttle.wait_s("a") == 0
    for _ in range(limits.DASHBOARD_FREE_FAILURES + 1):
        throttle.begin("b")
        throttle.succeed("b")  # who never fails never waits
        assert throttle.wait_s("b") == 0


# --- logins ----------------------------------------------------------------------------------


def test_users_of_clients_see_their_account_and_those_of_the_system_all() -> None:
    judge = logins(Options(users=[ALICE, ROOT, META]))
    assert judge.is_needed
    alice, root, meta = (log_in(judge, u.name, u.password) for u in (ALICE, ROOT, META))
    assert alice is not None and root is not None and meta is not None
    assert (alice.account, alice.role) == ("A", "reader")
    assert alice.sees("A") and not alice.sees("B") and not alice.sees_all
    assert (root.account, root.role) == ("", "administrator") and root.sees("B")
    assert (meta.account, meta.role) == ("A", "administrator")
    assert meta.may_request("$JS.API.META.LEADER.STEPDOWN")
    assert not meta.may_request("$JS.API.STREAM.MSG.GET.S")  # its permissions hold here as well
    assert alice.may_request("$JS.API.STREAM.MSG.GET.S")
    for name, password, token in (
        ("alice", "x", ""), ("nobody", "a", ""), ("", "", ""), ("", "a", ""), ("", "", "a"),
    ):  # fmt: skip
        assert log_in(judge, name, password, token) is None


def test_half_a_character_is_nobodys_name_or_password() -> None:
    """JSON may hold one: that is a wrong login, whatever it is compared with."""
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    judge = logins(Options(users=[ALICE, User("bob", hashed)]))
    assert log_in(judge, "bob", "secret") is not None  # from here on its digest is compared
    for name, password, token in (
        ("\ud800", "a", ""), ("alice", "\ud800", ""), ("bob", "\udfff", ""), ("", "", "\ud800"),
    ):  # fmt: skip
        assert log_in(judge, name, password, token) is None


def test_the_only_identity_administers_everything() -> None:
    single = log_in(logins(Options(username="u", password="p")), "u", "p")
    token = log_in(logins(Options(token="t")), token="t")
    assert single is not None and token is not None
    assert [g.role for g in (single, token)] == ["administrator"] * 2
    assert (single.user, token.user) == ("u", "token") and single.sees_all and token.sees_all


def test_the_http_block_takes_the_place_of_clients_logins() -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    own = HttpLogins(
        users=(
            HttpUser("ops", hashed, is_administrator=True),
            HttpUser("see", "s", account="A"),
        ),
        token="t",
    )
    judge = logins(Options(users=[ALICE], http_logins=own))
    ops, see, token = (
        log_in(judge, "ops", "secret"), log_in(judge, "see", "s"), log_in(judge, token="t"),
    )  # fmt: skip
    assert ops is not None and see is not None and token is not None
    assert (ops.role, ops.sees_all) == ("administrator", True)
    assert (see.role, see.account) == ("reader", "A")
    assert token.role == "administrator"
    for name, password, word in (("alice", "a", ""), ("ops", "x", ""), ("", "", "x")):
        assert log_in(judge, name, password, word) is None
    assert "secret" not in repr(own) and hashed not in repr(own)
    assert logins(Options(http_logins=own)).is_needed


@pytest.mark.parametrize(
    "change",
    [
        lambda o: replace(o, users=[replace(ALICE, password="b"), ROOT]),
        lambda o: replace(o, users=[ROOT]),
        lambda o: replace(o, users=[replace(ALICE, permissions=Permissions()), ROOT]),
        lambda o: replace(o, http_logins=HttpLogins(token="t")),
        lambda o: replace(o, users=[]),
    ],
    ids=["password", "removed", "permissions", "http block", "no logins any more"],
)
def test_a_login_holds_until_its_words_in_the_configuration_change(change: object) -> None:
    assert callable(change)
    options = Options(users=[ALICE, ROOT])
    judge = logins(options)
    alice, root = log_in(judge, "alice", "a"), log_in(judge, "root", "r")
    assert alice is not None and root is not None
    judge.reload(replace(options, max_payload=9))
    assert judge.is_valid(alice) and judge.is_valid(root)
    changed = change(options)
    judge.reload(changed)
    assert not judge.is_valid(alice)
    assert judge.is_valid(root) == (ROOT in changed.users and not changed.http_logins)


@pytest.mark.parametrize("login", [{"name": "u", "password": "p"}, {"token": "t"}])
def test_the_only_identity_has_to_log_in_again_once_it_is_not_the_only_one(
    login: dict[str, str],
) -> None:
    """It administered everything, and does not beside others."""
    alone = Options(token="t") if "token" in login else Options(username="u", password="p")
    judge = logins(alone)
    grant = log_in(judge, **login)
    assert grant is not None and grant.sees_all and judge.is_valid(grant)
    judge.reload(replace(alone, users=[ALICE]))
    assert not judge.is_valid(grant)


def test_a_login_by_a_service_holds_for_as_long_as_that_says() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    facts = TokenFacts(expires_ns=time.time_ns() + 3600 * 10**9)
    grant = grant_of(Identity("u", "A", token=facts), "$SYS", "u")
    secret, session = sessions.begin(grant)
    assert sessions.find(secret) is session
    ended = replace(grant, expires_ns=time.time_ns())
    secret, session = sessions.begin(ended)
    told: list[str] = []
    session.watch(lambda: told.append("ended"))
    sessions.sweep()  # as event streams do all the time
    assert told == ["ended"] and sessions.find(secret) is None


def test_where_nobody_logs_in_a_grant_holds_until_somebody_has_to() -> None:
    judge = logins(Options())
    assert not judge.is_needed
    grant = judge.open_grant()
    assert grant.role == "administrator" and judge.is_valid(grant)
    judge.reload(Options(token="t"))
    assert not judge.is_valid(grant) and not judge.is_valid(OPEN)


def test_a_password_that_nobody_could_check_is_not_called_wrong() -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    checks = PasswordChecks()
    checks.waiting_count = limits.PASSWORD_CHECKS_WAITING_MAX
    judge = Logins(Options(users=[User("bob", hashed)]), lambda: None, checks)
    with pytest.raises(Busy):
        log_in(judge, "bob", "secret")


# --- which browser is on this host ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address", "headers", "is_here"),
    [
        ("localhost", "127.0.0.1", {}, True),
        ("LOCALHOST:8222", "::1", {}, True),
        ("127.0.0.1:8222", "::ffff:127.0.0.1", {}, True),
        ("[::1]:8222", "::1", {}, True),
        ("127.9.9.9", "127.9.9.9", {}, True),
        ("localhost", "10.0.0.1", {}, False),
        ("localhost", "", {}, False),
        ("evil.example", "127.0.0.1", {}, False),
        ("127.0.0.1.evil.example:8222", "127.0.0.1", {}, False),
        ("localhost.evil.example", "127.0.0.1", {}, False),
        ("x@127.0.0.1:8222", "127.0.0.1", {}, False),
        ("[", "127.0.0.1", {}, False),
        ("", "127.0.0.1", {}, False),
        ("localhost", "127.0.0.1", {"Via": "1.1 proxy"}, False),
        ("localhost", "127.0.0.1", {"X-Real-IP": "127.0.0.1"}, False),
    ],
)
def test_a_browser_is_here_by_its_address_and_by_the_name_that_it_asks_for(
    host: str, address: str, headers: dict[str, str], is_here: bool
) -> None:
    transport = SimpleNamespace(get_extra_info=lambda _: (address, 5) if address else None)
    request = SimpleNamespace(host=host, headers=headers, transport=transport)
    assert is_from_here(request) is is_here  # type: ignore[arg-type]
