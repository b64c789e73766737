"""`streamctl pub`: messages from the command line or standard input."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import click

from streamd.ctl.body_templates import filled
from streamd.ctl.display import note, say, show_data
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.nats_link import Link, decoded
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.quantities import count_text, size_text
from streamd.ctl.verbs import count_option, wire_verb

FLUSHED_EVERY = 1000


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    """Return headers of `NAME:VALUE` words. Raises CtlError."""
    found: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or any(sign in text for sign in "\r\n"):
            raise unusable(f"--header {text!r}: write NAME:VALUE")
        found[name.strip()] = value.strip()
    return found


header_option = click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="May be repeated."
)
templates_option = click.option(
    "--templates/--no-templates",
    "has_templates",
    default=True,
    help="Fill in {{Count}}, {{TimeStamp}}, {{Unix}}, {{ID}}, {{Random MIN MAX}}  [default].",
)


@wire_verb(
    None,
    "pub",
    example="streamctl pub orders.eu '{\"n\": {{Count}}}' --count 1000 --rate 100 --stream",
)
@click.argument("subject")
@click.argument("body", required=False)
@header_option
@templates_option
@count_option("--count", default=1, help_text="Messages to publish.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second.")
@click.option("--reply", default="", help="Subject for answers.")
@click.option("--lines", is_flag=True, help="A message for each line of standard input.")
@click.option("--stream", "is_stored", is_flag=True, help="Wait for the ack of a stream.")
async def command_pub(
    link: Link,
    subject: str,
    body: str | None,
    headers: tuple[str, ...],
    has_templates: bool,
    count: int,
    rate: float | None,
    reply: str,
    lines: bool,
    is_stored: bool,
) -> None:
    """Publish messages: BODY, or standard input where it is left out."""
    if lines and (body is not None or count > 1):
        raise unusable("--lines takes its messages from standard input: no BODY, no --count")
    if is_stored and reply:
        raise unusable("--stream and --reply exclude each other: the ack is the reply")
    fixed = headers_of(headers)
    whole = b"" if lines or body is not None else sys.stdin.buffer.read()
    sent = size = 0
    acks: list[dict[str, object]] = []
    began = time.monotonic()
    total = None if lines else count
    with progress_bar(f"publishing to {subject}", total) as bar:
        for number, text in enumerate(_bodies(body, whole, count, lines), 1):
            if isinstance(text, str):
                payload = (filled(text, number) if has_templates else text).encode()
            else:
                payload = text
            named = {
                key: filled(value, number) if has_templates else value
                for key, value in fixed.items()
            }
            if is_stored:
                acks.append(await _store(link, subject, payload, named))
            else:
                await link.nc.publish(subject, payload, reply=reply, headers=named or None)
                if number % FLUSHED_EVERY == 0:
                    await link.nc.flush()
            sent, size = number, size + len(payload)
            bar.advance()
            if rate:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
    await link.nc.flush()
    summary: dict[str, object] = {"subject": subject, "messages": sent, "bytes": size}
    if is_stored:
        summary["acks"] = acks
    if show_data(link.settings, summary):
        return
    for ack in acks[:1] if len(acks) == 1 else ():
        say(f"stored in {ack['stream']} as {ack['seq']}{', known' if ack.get('duplicate') else ''}")
    note(f"{count_text(sent)} messages published to {subject}, {size_text(size)}")


def _bodies(body: str | None, whole: bytes, count: int, lines: bool) -> Iterator[str | bytes]:
    if lines:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    for _ in range(count):
        yield whole if body is None else body


async def _store(
    link: Link, subject: str, payload: bytes, headers: dict[str, str]
) -> dict[str, object]:
    try:
        answer = await link.request(subject, payload, headers=headers or None)
    except CtlError as err:
        if str(err).startswith("nobody answers"):
            raise CtlError(
                f"no stream stores {subject!r}", f"streamctl stream list --subject '{subject}'"
            ) from None
        raise
    try:
        found: dict[str, object] = json.loads(answer.data)
        is_ack = isinstance(found, dict) and ("stream" in found or "error" in found)
    except ValueError:
        is_ack = False
    if not is_ack:
        raise CtlError(f"{answer.data[:60]!r} came back, which is no stream's ack")
    ack: dict[str, object] = decoded(answer.data)
    return ack
