"""Passwords are tried on threads of their own: a storm of guesses delays guessers, nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import bcrypt
import pytest

from streamd.config.options import Options, User
from streamd.net.client import password_checks
from streamd.net.client.auth import Authenticator, Check, Identity
from streamd.net.client.password_checks import THREADS, PasswordChecks
from streamd.store.disk import DiskThread
from tests.unit.net.bed import Bed

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()


class Gate:
    """bcrypt that waits, on whichever thread it is asked, until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.threads: set[str] = set()
        self.at_once_max = self._at_once = 0
        self._lock = threading.Lock()
        self._check = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, secret: bytes, wanted: bytes) -> bool:
        with self._lock:
            self.threads.add(threading.current_thread().name)
            self._at_once += 1
            self.at_once_max = max(self.at_once_max, self._at_once)
        self.may_go_on.wait(30)
        with self._lock:
            self._at_once -= 1
        return self._check(secret, wanted)


def check_of(auth: Authenticator, password: str, user: str = "u") -> Check:
    found = auth.judge({"user": user, "pass": password})
    assert isinstance(found, Check)
    return found


async def test_a_storm_of_guesses_holds_neither_disks_nor_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While 500 guesses wait for threads that are all busy, a disk thread and the loop's default
    threads do what they are asked at once; no more threads than allowed ever try a password."""
    gate = Gate(monkeypatch)
    loop = asyncio.get_running_loop()
    checks, auth = PasswordChecks(), Authenticator(Options(users=[User("u", HASH)]))
    outcomes: list[Identity | None] = []
    over = asyncio.Event()

    def done(identity: Identity | None) -> None:
        outcomes.append(identity)
        if len(outcomes) == 501:
            over.set()

    for at in range(500):
        check = check_of(auth, f"guess {at}")
        checks.submit(loop, "10.0.0.1", check, is_gone=lambda: False, done=done)
    assert checks.waiting_count == 500 - THREADS

    disk = DiskThread("disk", loop.call_soon_threadsafe)
    written = asyncio.Event()
    disk.submit(lambda: 7, lambda result: written.set())
    async with asyncio.timeout(20):
        await written.wait()
        assert await asyncio.to_thread(lambda: 8) == 8
    assert not outcomes  # all of that while every guess still waits
    disk.close()

    # Who comes from elsewhere has to wait for what runs, and for one guess of the crowd.
    right = check_of(auth, "right")
    came: list[int] = []
    checks.submit(
        loop, "10.0.0.2", right, is_gone=lambda: False,
        done=lambda identity: (came.append(len(outcomes)), done(identity))[0],
    )  # fmt: skip
    gate.may_go_on.set()
    async with asyncio.timeout(30):
        await over.wait()
    assert came[0] <= 2 * THREADS + 1
    assert sum(identity is not None for identity in outcomes) == 1
    assert gate.at_once_max <= THREADS
    assert all(name.startswith("password") for name in gate.threads)
    checks.close()


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes behind is sent away at once, and not as somebody with a wrong password: clients
    come again after a timeout. Those who are gone make room."""
    monkeypatch.setattr(password_checks, "PASSWORD_CHECKS_WAITING_MAX", 5)
    bed = Bed(Options(users=[User("u", HASH)]))

    def guess(at: int) -> Any:
        return bed.peer(b'CONNECT {"user":"u","pass":"%d"}\r\n' % at)

    peers = [guess(at) for at in range(THREADS + 5)]
    late = guess(99)
    assert late.take() == b"-ERR 'Authentication Timeout'\r\n" and late.transport.is_closing
    for peer in peers[-3:]:
        peer.leave()
    waiting = guess(100)
    assert not waiting.transport.is_closing
    assert bed.listener.passwords.waiting_count == 3
    bed.clock.finish_jobs()
    assert waiting.take() == b"-ERR 'Authorization Violation'\r\n"
    assert bed.listener.passwords.waiting_count == 0


@pytest.mark.parametrize(
    "passwords", [[HASH], ["plain"], [HASH, "plain", HASH.replace("$04", "$05")]]
)
def test_an_unknown_user_takes_as_long_as_a_known_one(passwords: list[str]) -> None:
    """What is compared with is of the kind and cost of somebody's password, for one name always of
    the same; and nobody is let in by it."""
    users = [User(f"u{at}", password) for at, password in enumerate(passwords)]
    auth = Authenticator(Options(users=users))
    kinds: set[str] = set()
    for at in range(64):
        connect = {"user": f"nobody{at}", "pass": "x"}
        first, second = auth.judge(connect), auth.judge(connect)
        assert type(first) is type(second)
        if isinstance(first, Check) and isinstance(second, Check):
            assert first.key == second.key and first.key[0] not in passwords
            kinds.add(first.key[0][:7])
        else:
            assert first is None
            kinds.add("plain")
    assert kinds == {password[:7] if password[0] == "$" else "plain" for password in passwords}
    check = auth.judge({"user": "nobody0", "pass": "x"})
    assert not isinstance(check, Check) or check.run() is None


def test_the_check_of_an_unknown_user_is_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """bcrypt is asked with a hash that it takes for one, so it works as hard as for any other."""
    auth = Authenticator(Options(users=[User("u", HASH)]))
    asked: list[bytes] = []
    check: Callable[[bytes, bytes], bool] = bcrypt.checkpw

    def checkpw(secret: bytes, wanted: bytes) -> bool:
        asked.append(bcrypt.hashpw(secret, wanted))  # raises ValueError if it is none
        return check(secret, wanted)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    found = auth.judge({"user": "nobody", "pass": "x"})
    assert isinstance(found, Check) and found.run() is None
    assert asked and asked[0].startswith(b"$2b$04$")
