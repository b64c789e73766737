"""A connection of `streamctl` to a server: nats-py's, with JetStream's API as raw JSON.

nats-py's classes know a part of a configuration's fields; what is shown and edited here are the
server's own documents, so that no field is lost.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from streamd.ctl.failures import ApiError, CtlError
from streamd.ctl.nats_import import quick_import
from streamd.ctl.progress_bar import progress_bar, spinner
from streamd.ctl.settings import Settings
from streamd.errors import describe

with quick_import():
    from nats import errors as errors
    from nats.aio import transport
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as Subscription

Body = Mapping[str, Any]
_QUIET_S: Final = 0.3
_SEED_FILE_MAX: Final = 1024 * 1024
_PAGES_MAX: Final = 10_000
_WEBSOCKET: Final = ("ws://", "wss://")


class Link:
    """Connection to a server, and what is asked over it."""

    def __init__(self, nc: Client, settings: Settings) -> None:
        self.nc = nc
        self.settings = settings

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        within_s: float = 0.0,
    ) -> Msg:
        """Return the answer to a request. Raises CtlError if nobody answers it in time."""
        wait_s = within_s or self.settings.timeout_s
        try:
            return await self.nc.request(subject, payload, timeout=wait_s, headers=headers)
        except errors.NoRespondersError:
            raise CtlError(f"nobody answers on {subject!r}") from None
        except (errors.TimeoutError, TimeoutError):
            raise CtlError(
                f"no answer on {subject!r} within {wait_s:g} s", "a longer --timeout"
            ) from None
        except errors.Error as err:
            raise CtlError(f"{subject!r}: {describe(err)}") from err

    async def api(self, name: str, body: Body | None = None, *, within_s: float = 0.0) -> Any:
        """Return the answer to a request of JetStream's API. Raises ApiError if it is refused."""
        subject = f"{self.settings.api_prefix}.{name}"
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self.request(subject, payload, within_s=within_s)
        except CtlError as err:
            if str(err).startswith("nobody answers"):
                raise CtlError(
                    f"nobody answers on {subject!r}: JetStream is off for this account",
                    "another user or --js-domain, or `jetstream {}` in the server's configuration",
                ) from None
            raise
        return decoded(answer.data)

    async def pages(self, name: str, key: str, body: Body | None = None) -> list[Any]:
        """Return all items of a list that the API hands out in pages."""
        found: list[Any] = []
        with progress_bar(f"reading {key}") as bar:
            for _ in range(_PAGES_MAX):
                answer = await self.api(name, {**(body or {}), "offset": len(found)})
                if not found:
                    bar.expect(answer.get("total", 0))
                items = answer.get(key) or []
                found += items
                if not items or len(found) >= answer.get("total", 0):
                    return found
                bar.advance(len(items))
        raise CtlError(f"{name}: more than {_PAGES_MAX} pages")

    async def survey(
        self,
        subject: str,
        body: Body | None = None,
        *,
        expected: int = 0,
        told: Callable[[Any], int] = lambda _: 0,
    ) -> list[Any]:
        """Return the answers of several servers to one request: as many as expected, or as an
        answer has `told` that there are, or all that come until it is quiet. Raises CtlError if the
        account may not ask that."""
        answers: list[Any] = []
        came = asyncio.Event()

        async def take(msg: Msg) -> None:
            if (msg.headers or {}).get("Status") != "503":
                answers.append(json.loads(msg.data))
            came.set()

        inbox = self.nc.new_inbox()
        subscription = await self.nc.subscribe(inbox, cb=take)
        await self.nc.publish(subject, json.dumps(body or {}).encode(), reply=inbox)
        wait_s = self.settings.timeout_s
        with spinner("waiting for the answers of servers"):
            while not expected or len(answers) < expected:
                came.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await came.wait()
                except TimeoutError:
                    break
                if not answers:
                    break
                expected = expected or told(answers[-1])
                wait_s = max(_QUIET_S, self.settings.timeout_s / 5) if expected else _QUIET_S
        await subscription.unsubscribe()
        if not answers:
            raise CtlError(
                f"no server answers on {subject!r}: this takes a user of the system account",
                "--user and --password of the system account, or a --context that has them",
            )
        return answers


def decoded(data: bytes) -> Any:
    """Return the document of an answer. Raises ApiError for a refusal, CtlError for no JSON."""
    try:
        answer = json.loads(data)
    except ValueError:
        raise CtlError(f"an answer that is no JSON: {data[:80]!r}") from None
    error = answer.get("error") if isinstance(answer, dict) else None
    if error:
        raise ApiError(
            error.get("description", "refused"), error.get("code", 0), error.get("err_code", 0)
        )
    return answer


def run_on_link(
    settings: Settings, work: Callable[[Link], Awaitable[int | None]], *, is_long: bool = False
) -> int | None:
    """Connect, do the work, and close the connection. Raises CtlError if no server lets us in."""

    async def run() -> int | None:
        link = await connect(settings, is_long=is_long)
        try:
            return await work(link)
        finally:
            await _close(link.nc)

    return asyncio.run(run())


async def connect(settings: Settings, *, is_long: bool = False) -> Link:
    """Return a connection to one of the servers. Raises CtlError that says why there is none."""
    if any(url.startswith(_WEBSOCKET) for url in settings.servers):
        import aiohttp

        transport.__dict__["aiohttp"] = aiohttp
    failures: list[str] = []

    async def on_error(err: Exception) -> None:
        failures.append(describe(err))
        if link is not None:
            print(f"streamctl: {describe(err)}", file=sys.stderr)

    link: Link | None = None
    nc = Client()
    options: dict[str, Any] = {
        "servers": settings.servers,
        "name": "streamctl",
        "error_cb": on_error,
        "connect_timeout": settings.timeout_s,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.1,
        "dont_randomize": True,
        **_login(settings),
        **_tls(settings),
    }
    if settings.inbox_prefix:
        options["inbox_prefix"] = settings.inbox_prefix
    try:
        # nats-py's own timeout does not cover a handshake for TLS that comes to nothing.
        async with asyncio.timeout((settings.timeout_s + 1) * 2 * len(settings.servers)):
            await nc.connect(**options)
    except (errors.Error, OSError, ValueError, TimeoutError) as err:
        await _close(nc)
        # A server that refuses a login may reset the connection before the refusal is read.
        refusals = [failure for failure in failures if "uthorization" in failure]
        reason = (refusals or failures or [describe(err)])[-1]
        raise CtlError(
            f"no connection to {', '.join(map(_without_secret, settings.servers))}: {reason}",
            "--server, NATS_URL or `streamctl context select NAME` for another server; "
            "`streamctl cluster up` for one on this machine",
        ) from err
    if is_long:  # from here on it comes back as often as the server does
        nc.options["max_reconnect_attempts"] = -1
        nc.options["reconnect_time_wait"] = 0.5
    link = Link(nc, settings)
    return link


def _login(settings: Settings) -> dict[str, Any]:
    if settings.creds:
        _check_seed(settings.creds, "--creds")
        return {"user_credentials": settings.creds}
    if settings.user_jwt and settings.user_seed:
        return {"user_credentials": _texts(settings.user_jwt, settings.user_seed)}
    if settings.nkey:
        _check_seed(settings.nkey, "--nkey")
        return {"nkeys_seed": settings.nkey}
    if settings.user and settings.password:
        return {"user": settings.user, "password": settings.password}
    if settings.token or settings.user:
        return {"token": settings.token or settings.user}
    return {}


def _texts(token: str, seed: str) -> Any:
    """Return credentials that stand in a context itself, as nats-py takes them."""
    from nats.aio.client import RawCredentials

    from streamd.tokens.credentials import format_credentials
    from streamd.tokens.nkeys import KeyPair

    return RawCredentials(format_credentials(token, KeyPair.from_seed(seed)))


def _check_seed(path: str, flag: str) -> None:
    """Raise CtlError if a file has no seed of a user: nats-py takes it for granted."""
    from streamd.errors import TokenError
    from streamd.tokens.nkeys import KeyPair

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = file.read(_SEED_FILE_MAX).split()
    except OSError as err:
        raise CtlError(f"{flag} {path}: {err.strerror}") from err
    seed = next((word for word in words if word.startswith("SU")), "")
    try:
        KeyPair.from_seed(seed)
    except TokenError:
        raise CtlError(f"{flag} {path}: holds no seed of a user (SU...)") from None


def _tls(settings: Settings) -> dict[str, Any]:
    is_wanted = settings.ca or settings.cert or settings.tls_first
    is_named = any(url.startswith(("tls://", "wss://")) for url in settings.servers)
    if not (is_wanted or is_named):
        return {}
    if bool(settings.cert) != bool(settings.key):
        raise CtlError("--tlscert and --tlskey belong together: one of them is missing")
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.cert:
            context.load_cert_chain(settings.cert, settings.key)
    except OSError as err:  # ssl.SSLError too
        files = " ".join(filter(None, (settings.ca, settings.cert, settings.key)))
        raise CtlError(f"certificates can't be used: {files}: {describe(err)}") from err
    return {"tls": context, "tls_handshake_first": settings.tls_first}


def _without_secret(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


async def _close(nc: Client) -> None:
    if not nc.is_closed:
        try:
            async with asyncio.timeout(2):
                await nc.close()
        except (TimeoutError, errors.Error, OSError):
            return
