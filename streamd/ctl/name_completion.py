"""Names of streams, consumers, buckets, servers and contexts as arguments, which a shell can
complete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from streamd.ctl import context_files
from streamd.ctl.failures import CtlError
from streamd.ctl.progress_bar import no_progress
from streamd.ctl.settings import settings_of

if TYPE_CHECKING:
    from streamd.ctl.nats_link import Link

_ANSWER_WITHIN_S = 1.0  # a shell waits for no server that is away


class _AskedName(click.ParamType):  # type: ignore[type-arg]
    """Name of something that servers know; `ask` returns the names."""

    name = "name"

    def __init__(self, ask: Callable[[click.Context, Link], Awaitable[list[str]]]) -> None:
        self._ask = ask

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask for names; none where nobody answers at once."""
        from streamd.ctl.nats_link import run_on_link

        found: list[str] = []

        async def ask(link: Link) -> None:
            found.extend(await self._ask(ctx, link))

        try:
            with no_progress():  # the terminal is a shell's, at a command line
                run_on_link(replace(settings_of(ctx), timeout_s=_ANSWER_WITHIN_S), ask)
        except CtlError:
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


class ContextName(click.ParamType):  # type: ignore[type-arg]
    """Name of a context."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the contexts there are."""
        return [CompletionItem(n) for n in context_files.names() if n.startswith(incomplete)]


async def _streams(_: click.Context, link: Link) -> list[str]:
    return await link.pages("STREAM.NAMES", "streams")


async def _consumers(ctx: click.Context, link: Link) -> list[str]:
    return await link.pages(f"CONSUMER.NAMES.{ctx.params.get('stream') or ''}", "consumers")


def _buckets(prefix: str) -> Any:
    """Return the type of names of buckets, which are streams with a prefix."""

    async def ask(ctx: click.Context, link: Link) -> list[str]:
        names = await _streams(ctx, link)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    return _AskedName(ask)


async def _servers(_: click.Context, link: Link) -> list[str]:
    from streamd.ctl.server_survey import all_servers

    return [answer["server"]["name"] for answer in (await all_servers(link)).found]


STREAM_NAME: Any = _AskedName(_streams)
CONSUMER_NAME: Any = _AskedName(_consumers)
KV_NAME: Any = _buckets("KV_")
OBJECT_BUCKET_NAME: Any = _buckets("OBJ_")
SERVER_NAME: Any = _AskedName(_servers)
CONTEXT_NAME: Any = ContextName()

stream_argument = click.argument("stream", type=STREAM_NAME)
consumer_argument = click.argument("consumer", type=CONSUMER_NAME)
