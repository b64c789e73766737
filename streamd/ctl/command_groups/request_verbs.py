"""`streamctl request` and `reply`: questions to services, and answers to them."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from streamd.ctl.body_templates import filled
from streamd.ctl.command_groups.publish_verb import header_option, headers_of, templates_option
from streamd.ctl.display import note, show_data, show_item
from streamd.ctl.message_display import Shown, as_document, as_text
from streamd.ctl.nats_link import Link
from streamd.ctl.pulling import shown_of
from streamd.ctl.verbs import count_option, wire_verb


@wire_verb(None, "request", example='streamctl request greet.me \'{"name": "Ann"}\' --replies 2')
@click.argument("subject")
@click.argument("body", required=False)
@header_option
@templates_option
@count_option("--replies", default=1, help_text="Most answers to wait for.")
@click.option("--raw", is_flag=True, help="Payloads only.")
async def command_request(
    link: Link,
    subject: str,
    body: str | None,
    headers: tuple[str, ...],
    has_templates: bool,
    replies: int,
    raw: bool,
) -> int:
    """Ask a service, and show its answers; BODY, or standard input where it is left out."""
    fixed = headers_of(headers)
    if body is None:
        payload = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    else:
        payload = (filled(body, 1) if has_templates else body).encode()
    if replies == 1:
        answer = await link.request(subject, payload, headers=fixed or None)
        answers = [_answer(answer)]
    else:
        answers = await _several(link, subject, payload, fixed, replies)
    if raw:
        for each in answers:
            print(each.payload.decode("utf-8", "replace"))
    elif not show_data(link.settings, [as_document(each) for each in answers]):
        for each in answers:
            print(as_text(each))
    if len(answers) < replies:
        note(f"{len(answers)} of {replies} answers came within {link.settings.timeout_s:g} s")
        return 1
    return 0


def _answer(msg: Any) -> Shown:
    """Return an answer without the inbox that it came to."""
    return shown_of(msg)._replace(subject="answer", reply="")


async def _several(
    link: Link, subject: str, payload: bytes, headers: dict[str, str], count: int
) -> list[Shown]:
    inbox = link.nc.new_inbox()
    found: list[Shown] = []
    is_full = asyncio.Event()

    async def take(msg: Any) -> None:
        if (msg.headers or {}).get("Status") == "503":
            is_full.set()
            return
        found.append(_answer(msg))
        if len(found) == count:
            is_full.set()

    subscription = await link.nc.subscribe(inbox, cb=take)
    await link.nc.publish(subject, payload, reply=inbox, headers=headers or None)
    try:
        async with asyncio.timeout(link.settings.timeout_s):
            await is_full.wait()
    except TimeoutError:
        pass
    await subscription.unsubscribe()
    return found


@wire_verb(None, "reply", example="streamctl reply greet.me 'hello number {{Count}}'", is_long=True)
@click.argument("subject")
@click.argument("body", required=False)
@header_option
@templates_option
@click.option("--echo", is_flag=True, help="Answer with the request itself.")
@click.option("--queue", default="streamctl", show_default=True, help="Queue group.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many requests.")
async def command_reply(
    link: Link,
    subject: str,
    body: str | None,
    headers: tuple[str, ...],
    has_templates: bool,
    echo: bool,
    queue: str,
    count: int | None,
) -> None:
    """Answer requests on a subject, until Ctrl-C."""
    if echo == (body is not None):
        from streamd.ctl.failures import unusable

        raise unusable("say what to answer: a BODY, or --echo")
    fixed = headers_of(headers)
    answered = 0
    text = body or ""
    came: asyncio.Queue[Any] = asyncio.Queue()
    await link.nc.subscribe(subject, queue=queue, cb=came.put)
    await link.nc.flush()
    note(f"answering on {subject}")
    while count is None or answered < count:
        msg = await came.get()
        if not msg.reply:
            continue
        answered += 1
        payload = msg.data if echo else (filled(text, answered) if has_templates else text).encode()
        await link.nc.publish(msg.reply, payload, headers=fixed or None)
        question = shown_of(msg)
        if not show_item(link.settings, as_document(question)):
            print(as_text(question), flush=True)
    await link.nc.flush()
