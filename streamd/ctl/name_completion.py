"""Names of streams, consumers and contexts as arguments, which a shell can complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from click.shell_completion import CompletionItem

from streamd.ctl import context_files
from streamd.ctl.failures import CtlError
from streamd.ctl.settings import settings_of

_ANSWER_WITHIN_S = 1.0  # a shell waits for no server that is away


class _ServedName(click.ParamType):  # type: ignore[type-arg]
    """Name of something at the server; `subject` is of the request that lists the names."""

    name = "name"

    def __init__(self, subject: Callable[[click.Context], str], key: str) -> None:
        self._subject = subject
        self._key = key

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask the server for names; none where it does not answer at once."""
        from streamd.ctl.nats_link import Link, run_on_link

        found: list[str] = []

        async def ask(link: Link) -> None:
            found.extend(await link.pages(self._subject(ctx), self._key))

        try:
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


def _consumers_of(ctx: click.Context) -> str:
    return f"CONSUMER.NAMES.{ctx.params.get('stream') or ''}"


STREAM_NAME: Any = _ServedName(lambda ctx: "STREAM.NAMES", "streams")
CONSUMER_NAME: Any = _ServedName(_consumers_of, "consumers")
CONTEXT_NAME: Any = ContextName()

stream_argument = click.argument("stream", type=STREAM_NAME)
consumer_argument = click.argument("consumer", type=CONSUMER_NAME)
