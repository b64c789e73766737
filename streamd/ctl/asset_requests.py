"""Requests about streams and consumers that several commands make."""

from __future__ import annotations

from typing import Any, Final

from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.nats_link import Link
from streamd.ctl.progress_bar import progress_bar

NO_STREAM: Final = 10059
NO_CONSUMER: Final = 10014
NO_MESSAGE: Final = 10037


async def stream_info(link: Link, stream: str) -> dict[str, Any]:
    """Return what the server says of a stream. Raises CtlError if there is none."""
    refuse_no_name(stream)
    try:
        found: dict[str, Any] = await link.api(f"STREAM.INFO.{stream}")
    except ApiError as err:
        if err.err_code == NO_STREAM:
            raise CtlError(f"no stream {stream!r}", "streamctl stream list") from None
        raise
    found.pop("type", None)
    return found


def refuse_no_name(name: str, kind: str = "stream") -> None:
    """Raise CtlError if that can't be the name of a stream or consumer."""
    if not name or any(sign in name for sign in " .*>/\\\t\r\n"):
        raise unusable(f"{name!r} is no name of a {kind}: no spaces, none of . * > / \\")


async def count_subjects(
    link: Link, stream: str, pattern: str, most: int = 0
) -> dict[str, int] | None:
    """Return the messages of each subject that `pattern` matches; None: more than `most`."""
    counts: dict[str, int] = {}
    with progress_bar("counting subjects") as bar:
        while True:
            body = {"subjects_filter": pattern, "offset": len(counts)}
            answer = await link.api(f"STREAM.INFO.{stream}", body)
            page = answer["state"].get("subjects") or {}
            total = answer.get("total", 0)
            if not counts:
                bar.expect(total)
            counts |= page
            if most and total > most:
                return None
            if not page or len(counts) >= total:
                return counts
            bar.advance(len(page))


async def consumer_info(link: Link, stream: str, consumer: str) -> dict[str, Any]:
    """Return what the server says of a consumer. Raises CtlError if there is none."""
    refuse_no_name(stream)
    refuse_no_name(consumer, "consumer")
    try:
        found: dict[str, Any] = await link.api(f"CONSUMER.INFO.{stream}.{consumer}")
    except ApiError as err:
        if err.err_code == NO_STREAM:
            raise CtlError(f"no stream {stream!r}", "streamctl stream list") from None
        if err.err_code == NO_CONSUMER:
            raise CtlError(
                f"stream {stream} has no consumer {consumer!r}",
                f"streamctl consumer list {stream}",
            ) from None
        raise
    found.pop("type", None)
    return found


async def consumers_of(link: Link, stream: str) -> list[dict[str, Any]]:
    """Return what the server says of all consumers of a stream. Raises CtlError."""
    refuse_no_name(stream)
    try:
        found: list[dict[str, Any]] = await link.pages(f"CONSUMER.LIST.{stream}", "consumers")
    except ApiError as err:
        if err.err_code == NO_STREAM:
            raise CtlError(f"no stream {stream!r}", "streamctl stream list") from None
        raise
    return found


async def next_message(link: Link, stream: str, seq: int, pattern: str) -> dict[str, Any] | None:
    """Return the first message from `seq` on that matches; None: there is none."""
    try:
        answer = await link.api(
            f"STREAM.MSG.GET.{stream}", {"seq": max(1, seq), "next_by_subj": pattern or ">"}
        )
    except ApiError as err:
        if err.err_code == NO_MESSAGE:
            return None
        raise
    message: dict[str, Any] = answer["message"]
    return message
