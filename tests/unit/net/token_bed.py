"""Account tokens of a server in a subject space of its own: what tests of them begin with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamd.config.account_options import AccountOptions
from streamd.durations import SECOND_NS
from streamd.net.account_tokens.account_loader import AccountLoader
from streamd.net.account_tokens.claims_requests import ClaimsPolicy, ClaimsRequests
from streamd.net.account_tokens.resolvers import DirectoryResolver, Resolver
from streamd.net.account_tokens.token_directory import TokenDirectory
from streamd.net.pubsub.message_router import MessageRouter
from streamd.tokens.claims import decode_operator
from streamd.tokens.validation import Trust
from tests.minted_tokens import SYSTEM, operator

NOW_S = 1_800_000_000
TRUST = Trust.of([decode_operator(operator())])
POLICY = ClaimsPolicy(TRUST, SYSTEM.public, compare_every_s=3600)


class Clock:
    """Unix time that the test moves."""

    def __init__(self) -> None:
        self.now = NOW_S * SECOND_NS

    def __call__(self) -> int:
        return self.now


class Told:
    """Options that a loader told, by account, and the problems with imports."""

    def __init__(self) -> None:
        self.options: dict[str, AccountOptions] = {}
        self.problems: dict[str, tuple[str, ...]] = {}
        self.gone: list[str] = []

    def __call__(self, options: AccountOptions, problems: tuple[str, ...]) -> None:
        self.options[options.name] = options
        self.problems[options.name] = problems


async def nobody(account_key: str) -> str | None:
    return None


def full_directory(path: Path, **options: Any) -> DirectoryResolver:
    options.setdefault("look_up", nobody)
    options.setdefault("is_full", True)
    return DirectoryResolver(TokenDirectory(path, Clock()), **options)


class Sender:
    """Answers in the subject space, without a description of the server."""

    def __init__(self, router: MessageRouter) -> None:
        self._router = router

    def send(self, reply: bytes, answer: dict[str, Any]) -> None:
        self.send_text(reply, json.dumps(answer).encode())

    def send_text(self, reply: bytes, body: bytes) -> None:
        self._router.publish(reply, b"", b"", body)


class Bed:
    """A server's requests about tokens, with a client that asks."""

    def __init__(
        self,
        resolver: Resolver,
        router: MessageRouter,
        name: str,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self.resolver = resolver
        self.router = router
        self.told = Told()
        self.gone: list[str] = []
        clock = now_ns or Clock()
        self.loader = AccountLoader(resolver, TRUST, clock, self.told, self.gone.append)
        self.requests = ClaimsRequests(
            router.subscriptions,
            router.publish,
            Sender(router),
            resolver,
            self.loader,
            POLICY,
            clock,
            name,
        )
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._inbox = f"_INBOX.{name}".encode()
        router.subscriptions.subscribe_internal(self._inbox, self._on_answer)

    def _on_answer(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: Any
    ) -> None:
        self._answers.put_nowait(payload)

    async def ask(self, subject: str, payload: str | bytes = b"") -> str:
        body = payload.encode() if isinstance(payload, str) else payload
        self.router.publish(subject.encode(), self._inbox, b"", body)
        async with asyncio.timeout(30):
            return (await self._answers.get()).decode()

    async def ask_all(self, subject: str, payload: bytes) -> list[str]:
        """Return the answers up to an empty one."""
        found = [await self.ask(subject, payload)]
        while found[-1]:
            async with asyncio.timeout(30):
                found.append((await self._answers.get()).decode())
        return found[:-1]


@asynccontextmanager
async def serving(
    resolver: Resolver,
    router: MessageRouter | None = None,
    name: str = "one",
    now_ns: Callable[[], int] | None = None,
) -> AsyncIterator[Bed]:
    bed = Bed(resolver, router or MessageRouter(), name, now_ns)
    await resolver.start()
    task = asyncio.get_running_loop().create_task(bed.requests.run())
    try:
        yield bed
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await resolver.close()
