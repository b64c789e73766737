"""Account tokens of a server: directories, resolvers, the loader, and requests about them.

Requests go through a real subject space, files into a temporary directory, and the web server of
the URL resolver is one on loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from streamd.config.operator_options import DeletedTokens, ResolverKind, ResolverOptions
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.limits import CLAIMS_REQUESTS_MAX, TOKEN_BYTES_MAX
from streamd.net.account_tokens.account_loader import AccountLoader
from streamd.net.account_tokens.claims_requests import ClaimsPolicy, LookUps
from streamd.net.account_tokens.resolvers import (
    DirectoryResolver,
    MemoryResolver,
    Resolver,
    UrlResolver,
    make_resolver,
)
from streamd.net.account_tokens.token_directory import TokenDirectory
from streamd.net.pubsub.message_router import MessageRouter
from streamd.tokens.claims import decode_operator
from streamd.tokens.nkeys import KeyKind, KeyPair
from streamd.tokens.validation import Trust
from tests.minted_tokens import (
    ACCOUNT,
    OPERATOR,
    OPERATOR_SIGNING,
    OTHER_ACCOUNT,
    SYSTEM,
    account,
    key,
    mint,
    operator,
)
from tests.unit.net.token_bed import (
    NOW_S,
    TRUST,
    Bed,
    Clock,
    Told,
    full_directory,
    nobody,
    serving,
)

A, B = ACCOUNT.public, OTHER_ACCOUNT.public


def _token(pair: KeyPair = ACCOUNT, *, issued_s: int = NOW_S, **claims: Any) -> str:
    return account(pair, now_s=issued_s, **claims)


def _directory(path: Path, clock: Clock | None = None, **options: Any) -> TokenDirectory:
    directory = TokenDirectory(path, clock or Clock(), **options)
    directory.open()
    return directory


# --- directories ----------------------------------------------------------------------------------


def test_a_directory_keeps_tokens_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "jwt"
    directory = _directory(path)
    directory.save(A, _token())
    directory.save(B, _token(OTHER_ACCOUNT))
    directory.save(A, _token(name="newer"))
    (path / "README.txt").write_text("x")
    (path / "notakey.jwt").write_text("x")
    again = _directory(path)
    assert again.names() == sorted((A, B))
    assert again.load(A) == _token(name="newer")
    assert again.digest() == directory.digest()
    assert oct(os.stat(path).st_mode)[-3:] == "700"
    assert oct(os.stat(path / f"{A}.jwt").st_mode)[-3:] == "600"
    assert [each.name for each in path.iterdir() if each.name.startswith(".")] == []


def test_the_digest_is_of_all_tokens(tmp_path: Path) -> None:
    """The XOR of SHA-256, whatever the order, and nothing of those that went."""
    directory = _directory(tmp_path)
    tokens = {A: _token(), B: _token(OTHER_ACCOUNT)}
    for name, token in tokens.items():
        directory.save(name, token)
    digests = [hashlib.sha256(token.encode()).digest() for token in tokens.values()]
    both = bytes(x ^ y for x, y in zip(*digests, strict=True))
    assert directory.digest() == both
    directory.delete(B)
    assert directory.digest() == digests[0]
    directory.delete(A)
    assert directory.digest() == bytes(32)


@pytest.mark.parametrize("is_removing", [False, True])
def test_a_deleted_token_is_renamed_or_removed(tmp_path: Path, is_removing: bool) -> None:
    directory = _directory(tmp_path, is_removing=is_removing)
    directory.save(A, _token())
    directory.delete(A)
    directory.delete(A)
    left = [] if is_removing else [f"{A}.jwt.deleted"]
    assert [path.name for path in tmp_path.iterdir()] == left
    assert directory.load(A) is None
    assert _directory(tmp_path).names() == []


def test_a_full_directory_takes_no_more_accounts(tmp_path: Path) -> None:
    directory = _directory(tmp_path, limit=1)
    directory.save(A, _token())
    directory.save(A, _token(name="newer"))
    with pytest.raises(TokenError, match="jwt store is full"):
        directory.save(B, _token(OTHER_ACCOUNT))
    assert directory.names() == [A]


def test_a_cache_drops_what_was_not_used_for_longest(tmp_path: Path) -> None:
    pairs = [key(KeyKind.ACCOUNT, str(number)) for number in range(3)]
    directory = _directory(tmp_path, limit=2, is_evicting=True)
    for pair in pairs[:2]:
        directory.save(pair.public, _token(pair))
    assert directory.load(pairs[0].public)
    directory.save(pairs[2].public, _token(pairs[2]))
    assert directory.names() == sorted((pairs[0].public, pairs[2].public))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_drops_what_was_not_used_for_its_time(tmp_path: Path) -> None:
    clock = Clock()
    directory = _directory(tmp_path, clock, ttl_ns=10 * SECOND_NS)
    directory.save(A, _token())
    clock.now += 10 * SECOND_NS
    assert directory.load(A)
    clock.now += 10 * SECOND_NS
    assert directory.load(A)
    clock.now += 10 * SECOND_NS + 1
    assert directory.load(A) is None
    assert not list(tmp_path.iterdir())


def test_the_newer_token_wins(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    assert directory.save_if_newer(A, _token())
    assert not directory.save_if_newer(A, _token())
    assert not directory.save_if_newer(A, _token(issued_s=NOW_S - 1))
    assert not directory.save_if_newer(A, _token(name="of the same second"))
    assert directory.save_if_newer(A, _token(issued_s=NOW_S + 1))
    with pytest.raises(TokenError, match="subject does not match"):
        directory.save_if_newer(B, _token(issued_s=NOW_S + 5))
    with pytest.raises(TokenError, match="expected 3 chunks"):
        directory.save_if_newer(A, "x")
    (tmp_path / f"{A}.jwt").write_text("damaged")
    assert directory.save_if_newer(A, _token())


@pytest.mark.parametrize("name", ["../x", "x/y", "", "..", A.lower(), B[:-1] + "A"])
def test_no_other_file_is_read_or_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "jwt"
    (tmp_path / "x.jwt").write_text("secret")
    directory = _directory(path)
    assert directory.load(name) is None
    with pytest.raises(TokenError, match="not a public account key"):
        directory.save(name, "x")
    directory.delete(name)
    assert (tmp_path / "x.jwt").read_text() == "secret"
    assert not list(path.iterdir())


def test_a_file_that_is_no_token_is_not_read(tmp_path: Path) -> None:
    (tmp_path / f"{A}.jwt").write_bytes(b"x" * (TOKEN_BYTES_MAX + 1))
    (tmp_path / f"{B}.jwt").write_bytes(b"\xff")
    assert _directory(tmp_path).names() == []


# --- resolvers ------------------------------------------------------------------------------------


async def test_memory_has_what_the_configuration_says() -> None:
    resolver: Resolver = MemoryResolver({A: _token()})
    await resolver.start()
    assert await resolver.fetch(A) == _token()
    assert await resolver.fetch(B) is None
    assert await resolver.list() == [A]
    await resolver.store(A, "x")
    assert await resolver.fetch(A) == "x"
    with pytest.raises(TokenError, match="account missing"):
        await resolver.store(B, "x")
    with pytest.raises(TokenError, match="delete must be enabled"):
        await resolver.delete(A)
    await resolver.close()


@asynccontextmanager
async def _web(answers: Mapping[str, tuple[int, str]]) -> AsyncIterator[str]:
    """Serve texts by path, 404 for others; `/slow` never answers."""

    async def serve(request: web.Request) -> web.Response:
        if request.path.endswith("slow"):
            await asyncio.Event().wait()
        status, text = answers.get(request.path, (404, "gone"))
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}/jwt/v1/accounts"
    finally:
        await runner.cleanup()


async def test_a_web_server_has_tokens_by_account() -> None:
    root = "/jwt/v1/accounts/"
    pages = {root: (200, "ok"), root + A: (200, f"{_token()}\n"), root + B: (500, "x")}
    async with _web(pages) as url:
        for given in (url, f"{url}/"):
            resolver: Resolver = UrlResolver(given)
            await resolver.start()
            assert await resolver.fetch(A) == _token()
            with pytest.raises(TokenError, match=f'could not fetch <"{url}/{B}">: 500 Internal'):
                await resolver.fetch(B)
            with pytest.raises(TokenError, match="404 Not Found"):
                await resolver.fetch(SYSTEM.public)
            assert await resolver.fetch("../secret") is None
            assert await resolver.list() == []
            with pytest.raises(TokenError, match="not supported"):
                await resolver.store(A, "x")
            await resolver.close()


async def test_a_web_server_that_fails_is_told() -> None:
    big = "x" * (TOKEN_BYTES_MAX + 1)
    async with _web({"/jwt/v1/accounts/": (503, "x"), f"/jwt/v1/accounts/{A}": (200, big)}) as url:
        resolver = UrlResolver(url)
        with pytest.raises(TokenError, match=f'could not fetch <"{url}/">: 503 Service'):
            await resolver.start()
        with pytest.raises(TokenError, match=f"over {TOKEN_BYTES_MAX} bytes"):
            await resolver.fetch(A)
        slow = UrlResolver(f"{url}/slow", timeout_s=0.05)
        slow._url = f"{url}/slow"
        with pytest.raises(TokenError, match="TimeoutError"):
            await slow.start()
        for each in (resolver, slow):
            await each.close()
    gone = UrlResolver(url)
    with pytest.raises(TokenError, match='could not fetch <"http'):
        await gone.start()
    await gone.close()
    with pytest.raises(TokenError, match="not a URL of a web server"):
        await UrlResolver("ftp://x").start()


async def test_a_directory_begins_with_the_preloaded_tokens(tmp_path: Path) -> None:
    resolver = full_directory(tmp_path, preload={A: _token()})
    await resolver.start()
    await resolver.store(A, _token(name="newer"))
    await resolver.close()
    again: Resolver = full_directory(tmp_path, preload={A: _token()})
    await again.start()
    assert again.kind is ResolverKind.FULL
    assert await again.fetch(A) == _token(name="newer")
    await again.close()


async def test_what_is_not_here_is_looked_up_and_kept(tmp_path: Path) -> None:
    asked: list[str] = []

    async def look_up(name: str) -> str | None:
        asked.append(name)
        return {A: _token(), B: _token()}.get(name)

    resolver = full_directory(tmp_path, look_up=look_up, is_full=False)
    await resolver.start()
    assert await resolver.fetch(A) == await resolver.fetch(A) == _token()
    assert await resolver.fetch(B) is None, "the token of another account"
    assert await resolver.fetch("x") is None
    assert asked == [A, B]
    assert await resolver.list() == [A]
    await resolver.close()


@pytest.mark.parametrize("kind", ResolverKind)
async def test_the_configuration_says_what_a_resolver_is(
    kind: ResolverKind, tmp_path: Path
) -> None:
    options = ResolverOptions(
        kind, url="http://127.0.0.1/x", directory=str(tmp_path), limit=1,
        deleted=DeletedTokens.REMOVED,
    )  # fmt: skip
    resolver = make_resolver(options, {A: _token()}, nobody, Clock())
    assert resolver.kind is kind
    if kind is not ResolverKind.URL:
        await resolver.start()
        assert await resolver.list() == [A]
    if isinstance(resolver, DirectoryResolver):
        try:
            await resolver.store(B, _token(OTHER_ACCOUNT))
        except TokenError as err:
            assert (kind, str(err)) == (ResolverKind.FULL, "jwt store is full")
        else:
            assert (kind, await resolver.list()) == (ResolverKind.CACHE, [B])
        for name in await resolver.list():
            await resolver.delete(name)
        assert not list(tmp_path.iterdir())
    await resolver.close()


async def test_a_cache_holds_a_thousand_tokens_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    for kind, options, limit in (
        (ResolverKind.CACHE, {}, 1000),
        (ResolverKind.CACHE, {"limit": 7}, 7),
        (ResolverKind.FULL, {}, 0),
    ):
        settings = ResolverOptions(kind, directory=str(tmp_path), **options)
        resolver = make_resolver(settings, {}, nobody, Clock())
        assert isinstance(resolver, DirectoryResolver)
        assert resolver._directory._limit == limit
        await resolver.close()


async def test_deletion_is_a_setting_of_full_directories(tmp_path: Path) -> None:
    for kind, is_refused in ((ResolverKind.FULL, True), (ResolverKind.CACHE, False)):
        options = ResolverOptions(kind, directory=str(tmp_path / kind.value))
        resolver = make_resolver(options, {}, nobody, Clock())
        assert isinstance(resolver, DirectoryResolver)
        assert resolver.is_deletable is not is_refused
        await resolver.close()


async def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    resolver = full_directory(tmp_path / "file" / "jwt")
    with pytest.raises(TokenError, match="account tokens: "):
        await resolver.start()
    await resolver.close()


# --- loader ---------------------------------------------------------------------------------------


def _importing(exporter: str = B, **fields: Any) -> list[dict[str, Any]]:
    return [{"subject": "s", "account": exporter, "type": "service", **fields}]


EXPORTS = [{"subject": "s", "type": "service"}]


def _loader(tokens: Mapping[str, str]) -> tuple[AccountLoader, Told, MemoryResolver]:
    told, resolver = Told(), MemoryResolver(tokens)
    return AccountLoader(resolver, TRUST, Clock(), told, told.gone.append), told, resolver


async def test_an_account_is_loaded_with_those_it_imports_of() -> None:
    """Also in a circle, and where one of them is nowhere."""
    loader, told, _ = _loader(
        {
            A: _token(imports=[*_importing(), *_importing(SYSTEM.public, subject="x")]),
            B: _token(OTHER_ACCOUNT, exports=EXPORTS, imports=_importing(A, subject="y")),
        }
    )
    assert (await loader.load(A)).registered.subject == A
    assert loader.names() == sorted((A, B))
    assert [each.account for each in told.options[A].imports] == [B]
    assert len(told.problems[A]) == 1
    assert "the account is not known" in told.problems[A][0]
    assert "exports no such subject" in told.problems[B][0]


@pytest.mark.parametrize(
    ("token", "error"),
    [
        ("", "account missing"),
        ("x", "expected 3 chunks"),
        (_token(OTHER_ACCOUNT), "subject does not match jwt content"),
        (_token(issuer=key(KeyKind.OPERATOR, "stranger")), "account validation failed"),
        (_token(exp=NOW_S - 1), "account validation failed"),
    ],
)
async def test_an_account_that_may_not_be_used_is_not_loaded(token: str, error: str) -> None:
    loader, told, _ = _loader({A: token} if token else {})
    with pytest.raises(TokenError, match=error):
        await loader.load(A)
    assert loader.get(A) is None
    assert not told.options


async def test_a_change_of_an_exporter_changes_its_importers() -> None:
    loader, told, _ = _loader(
        {A: _token(imports=_importing()), B: _token(OTHER_ACCOUNT, exports=EXPORTS)}
    )
    await loader.load(A)
    assert told.options[A].imports
    assert loader.update(B, _token(OTHER_ACCOUNT))
    assert not told.options[A].imports
    assert not loader.update(SYSTEM.public, _token(SYSTEM))
    with pytest.raises(TokenError, match="account validation failed"):
        loader.update(B, _token(OTHER_ACCOUNT, issuer=key(KeyKind.OPERATOR, "x"), exports=EXPORTS))
    assert not told.options[A].imports
    loader.update(B, _token(OTHER_ACCOUNT, exports=EXPORTS))
    assert told.options[A].imports
    loader.forget(B)
    loader.forget(B)
    assert told.gone == [B]
    assert loader.get(B) is None
    assert not told.options[A].imports


async def test_an_update_has_new_exporters_loaded() -> None:
    loader, told, _ = _loader({A: _token(), B: _token(OTHER_ACCOUNT, exports=EXPORTS)})
    await loader.load(A)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(loader.run())
        assert loader.update(A, _token(imports=_importing()))
        assert not told.options[A].imports
        async with asyncio.timeout(30):
            while not told.options[A].imports:
                await asyncio.sleep(0)
        running.cancel()
    assert loader.names() == sorted((A, B))


async def test_logins_at_once_have_an_account_fetched_once() -> None:
    fetched: list[str] = []
    is_open = asyncio.Event()

    class Slow(MemoryResolver):
        async def fetch(self, account: str) -> str | None:
            fetched.append(account)
            await is_open.wait()
            return await super().fetch(account)

    loader = AccountLoader(Slow({A: _token()}), TRUST, Clock(), Told(), print)
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(loader.load(A)), group.create_task(loader.load(A))
        while not fetched:
            await asyncio.sleep(0)
        is_open.set()
    assert first.result() is second.result()
    assert fetched == [A]


async def test_a_login_that_is_given_up_fails_those_who_wait_with_it() -> None:
    started = asyncio.Event()

    class Hanging(MemoryResolver):
        async def fetch(self, account: str) -> str | None:
            started.set()
            await asyncio.Event().wait()
            return None

    loader = AccountLoader(Hanging({}), TRUST, Clock(), Told(), print)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(loader.load(A))
        await started.wait()

        async def wait() -> str:
            try:
                await loader.load(A)
            except TokenError as err:
                return str(err)
            return ""

        second = group.create_task(wait())
        await asyncio.sleep(0)
        first.cancel()
    assert second.result() == "the look-up was given up"


# --- requests -------------------------------------------------------------------------------------


UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
UPDATES_OF = ("$SYS.REQ.ACCOUNT.{}.CLAIMS.UPDATE", "$SYS.ACCOUNT.{}.CLAIMS.UPDATE")


def _data(message: str, name: str = A) -> str:
    return json.dumps({"data": {"account": name, "code": 200, "message": message}})


def _error(description: str, name: str = A) -> str:
    about = {"account": name} if name else {}
    return json.dumps({"error": about | {"code": 500, "description": description}})


async def test_a_full_directory_stores_every_token(tmp_path: Path) -> None:
    async with serving(full_directory(tmp_path)) as bed:
        await bed.resolver.store(A, _token())
        await bed.loader.load(A)
        assert await bed.ask(UPDATE, _token(name="newer")) == _data("jwt updated")
        assert bed.told.options[A].label == "newer"
        for subject in UPDATES_OF:
            token = _token(OTHER_ACCOUNT)
            assert await bed.ask(subject.format(B), token) == _data("jwt updated", B)
            refused = "jwt update resulted in error - subject does not match jwt content"
            assert await bed.ask(subject.format(B), _token()) == _error(refused, B)
        stranger = _token(issuer=key(KeyKind.OPERATOR, "stranger"))
        assert await bed.ask(UPDATE, stranger) == _data("jwt updated")
        assert bed.told.options[A].label == "newer", "stored, and not used"
        assert await bed.ask("$SYS.REQ.CLAIMS.LIST") == json.dumps({"data": sorted((A, B))})
        assert await bed.ask(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP") == stranger
        assert await bed.ask(f"$SYS.REQ.ACCOUNT.{SYSTEM.public}.CLAIMS.LOOKUP") == ""


async def test_bad_tokens_are_refused_with_reasons(tmp_path: Path) -> None:
    async with serving(full_directory(tmp_path)) as bed:
        for payload in ("", "x"):
            refused = "jwt update resulted in error - expected 3 chunks"
            assert await bed.ask(UPDATE, payload) == _error(refused, "n/a")
        assert "not account claim" in await bed.ask(UPDATE, operator())
        for claims, why in (
            (
                {"exports": [{"subject": "a..b", "type": "stream"}]},
                'validation errors: [subject "a..b" cannot contain consecutive `.`]',
            ),
            (
                {"mappings": {"a": [{"subject": "{{foo(1)}}"}]}},
                'mapping "a" -> "{{foo(1)}}": invalid mapping destination: unknown function in'
                " {{foo(1)}}",
            ),
        ):
            refused = f"jwt validation failed - {why}"
            assert await bed.ask(UPDATE, _token(**claims)) == _error(refused)
        assert await bed.resolver.list() == []


async def test_strict_operators_refuse_what_their_own_key_signed(tmp_path: Path) -> None:
    claims = operator(strict_signing_key_usage=True, signing_keys=[OPERATOR_SIGNING.public])
    policy = ClaimsPolicy(Trust.of([decode_operator(claims)]), SYSTEM.public)
    async with serving(full_directory(tmp_path)) as bed:
        bed.requests._policy = policy
        refused = "jwt update resulted in error - operator requires issuer to be a signing key"
        assert await bed.ask(UPDATE, _token()) == _error(refused)
        assert await bed.ask(UPDATE, _token(issuer=OPERATOR_SIGNING)) == _data("jwt updated")


async def test_a_store_that_is_full_says_so(tmp_path: Path) -> None:
    directory = TokenDirectory(tmp_path, Clock(), limit=1)
    async with serving(DirectoryResolver(directory, nobody, is_full=True)) as bed:
        assert await bed.ask(UPDATE, _token()) == _data("jwt updated")
        refused = _error("jwt update resulted in error - jwt store is full", B)
        assert await bed.ask(UPDATE, _token(OTHER_ACCOUNT)) == refused


async def test_memory_updates_what_is_loaded() -> None:
    async with serving(MemoryResolver({A: _token()})) as bed:
        for subject in (each.format(A) for each in UPDATES_OF):
            assert await bed.ask(subject, _token(name="n")) == _data("jwt update skipped")
            empty = _error("jwt update error - request body is empty")
            assert await bed.ask(subject) == empty
            refused = "jwt update resulted in error - subject does not match jwt content"
            assert await bed.ask(subject, _token(OTHER_ACCOUNT)) == _error(refused)
        await bed.loader.load(A)
        assert await bed.ask(UPDATES_OF[0].format(A), _token(name="n")) == _data("jwt updated")
        assert bed.told.options[A].label == "n"
        bad = _token(exports=[{"subject": "", "type": "stream"}])
        refused = _error("jwt update resulted in error - account validation failed")
        assert await bed.ask(UPDATES_OF[0].format(A), bad) == refused
        assert not bed.router.has_interest(b"$SYS.REQ.CLAIMS.LIST")
        assert not bed.router.has_interest(UPDATE.encode())


async def test_a_cache_updates_what_is_loaded(tmp_path: Path) -> None:
    subject = UPDATES_OF[0].format(A)
    async with serving(full_directory(tmp_path, is_full=False, preload={A: _token()})) as bed:
        assert await bed.ask(subject, _token(name="n")) == _data("jwt update cache skipped")
        await bed.loader.load(A)
        newer = _token(issued_s=NOW_S + 1, name="n")
        assert await bed.ask(subject, newer) == _data("jwt updated cache")
        assert bed.told.options[A].label == "n"
        older = _token(issued_s=NOW_S - 1, name="o")
        assert await bed.ask(subject, older) == _data("jwt updated cache")
        assert bed.told.options[A].label == "n"
        refused = "jwt update cache resulted in error - expected 3 chunks"
        assert await bed.ask(subject, "x") == _error(refused)
        assert not bed.router.has_interest(f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP".encode())
        assert await bed.ask("$SYS.REQ.CLAIMS.LIST") == json.dumps({"data": [A]})


def _deletion(accounts: object, issuer: KeyPair = OPERATOR, asker: KeyPair | None = None) -> str:
    return mint("generic", (asker or issuer).public, issuer, accounts=accounts)


async def test_operators_delete_tokens(tmp_path: Path) -> None:
    subject = "$SYS.REQ.CLAIMS.DELETE"
    async with serving(full_directory(tmp_path, is_deletable=True)) as bed:
        await bed.resolver.store(A, _token())
        await bed.loader.load(A)
        stranger = key(KeyKind.OPERATOR, "stranger")
        by = f"delete accounts request by {OPERATOR.public} failed - "
        for payload, refused in (
            ("", "delete accounts request by  failed - expected 3 chunks"),
            (
                _deletion([A], stranger),
                by.replace(OPERATOR.public, stranger.public) + "not trusted",
            ),
            (_deletion([A], OPERATOR, ACCOUNT), by.replace(OPERATOR.public, A) + "not self signed"),
            (_deletion([SYSTEM.public]), by + "not allowed to delete system account"),
            (_deletion("x"), by + "malformed request"),
            (_deletion([A, 5]), by + "malformed request"),
            (_deletion(None), by + "malformed request"),
        ):
            assert await bed.ask(subject, payload) == _error(refused, "")
        assert bed.loader.get(A) is not None
        done = {"data": {"code": 200, "message": "deleted 2 accounts"}}
        assert await bed.ask(subject, _deletion([A, B])) == json.dumps(done)
        assert (bed.loader.get(A), bed.gone) == (None, [A])
        assert [path.name for path in tmp_path.iterdir()] == [f"{A}.jwt.deleted"]
    async with serving(full_directory(tmp_path / "other")) as bed:
        refused = _error(by + "delete must be enabled in server config", "")
        assert await bed.ask(subject, _deletion([A])) == refused


async def test_servers_compare_their_directories(tmp_path: Path) -> None:
    """Each has what the other lacks, and the newer of what both have."""
    router = MessageRouter()
    async with (
        serving(full_directory(tmp_path / "1"), router, "one") as one,
        serving(full_directory(tmp_path / "2"), router, "two") as two,
    ):
        await one.resolver.store(A, _token())
        await two.resolver.store(A, _token(issued_s=NOW_S + 1, name="newer"))
        await two.resolver.store(B, _token(OTHER_ACCOUNT))
        await one.loader.load(A)
        await one.requests._compare()
        assert isinstance(one.resolver, DirectoryResolver)
        assert isinstance(two.resolver, DirectoryResolver)
        async with asyncio.timeout(30):
            while await one.resolver.digest() != await two.resolver.digest():
                await asyncio.sleep(0)
        assert await one.resolver.list() == sorted((A, B))
        while one.told.options[A].label != "newer":
            await asyncio.sleep(0)


async def test_a_pack_holds_what_another_lacks(tmp_path: Path) -> None:
    async with serving(full_directory(tmp_path)) as bed:
        await bed.resolver.store(A, _token())
        assert await bed.ask_all("$SYS.REQ.CLAIMS.PACK", b"x") == [f"{A}|{_token()}"]
        assert isinstance(bed.resolver, DirectoryResolver)
        same = await bed.resolver.digest()
        assert await bed.ask_all("$SYS.REQ.CLAIMS.PACK", same) == []


async def test_garbage_of_another_server_is_left_out(tmp_path: Path) -> None:
    async with serving(full_directory(tmp_path)) as bed:
        for line in (b"", b"x", b"x|y", A.encode() + b"|x", f"{B}|{_token()}".encode(), b"\xff|"):
            bed.router.publish(b"$SYS._INBOX.pack.one", b"", b"", line)
        bed.router.publish(b"$SYS._INBOX.pack.one", b"", b"", f"{A}|{_token()}".encode())
        assert await bed.ask("$SYS.REQ.CLAIMS.LIST") == json.dumps({"data": [A]})


async def test_requests_thatnobody_serves_are_dropped_at_a_bound() -> None:
    router = MessageRouter()
    bed = Bed(MemoryResolver({}), router, "one")
    for _ in range(CLAIMS_REQUESTS_MAX + 5):
        router.publish(UPDATES_OF[0].format(A).encode(), b"", b"", b"x")
    assert bed.requests.dropped_count == 5
    task = asyncio.get_running_loop().create_task(bed.requests.run())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_look_up_takes_the_first_token(tmp_path: Path) -> None:
    router = MessageRouter()
    look_ups = LookUps(router.subscriptions, router.publish, "two", timeout_s=0.05)
    assert await look_ups(A) is None
    async with serving(full_directory(tmp_path), router) as bed:
        assert await look_ups(A) is None
        await bed.resolver.store(A, _token())
        patient = LookUps(router.subscriptions, router.publish, "three", timeout_s=5)
        assert await patient(A) == _token()
