"""Buckets of keys or of objects, which are streams with a prefix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

from streamd.ctl.asset_requests import stream_info
from streamd.ctl.display import note, show_data
from streamd.ctl.failures import CtlError, unusable
from streamd.ctl.nats_link import Link
from streamd.ctl.questions import confirm

F = TypeVar("F", bound=Callable[..., Any])
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


def bucket_options(ttl: str) -> Callable[[F], F]:
    """Return the decorator that gives `add` the flags of every kind of bucket. `ttl`: the help of
    that flag."""

    def decorate(work: F) -> F:
        for option in (
            click.option("--description", default="", help="Remark for people."),
            click.option("--ttl", default="0", help=ttl),
            click.option("--max-bytes", default="-1", help="Largest bucket, as 10GiB."),
            click.option(
                "--storage",
                type=click.Choice(("file", "memory")),
                default="file",
                show_default=True,
                help="Place of the bucket.",
            ),
            click.option("--replicas", type=int, default=1, show_default=True, help="Copies."),
        ):
            work = option(work)
        return work

    return decorate


class BucketKind(NamedTuple):
    """Kind of buckets: what their streams' names begin with, and the command that lists them."""

    prefix: str
    listing: str

    def stream(self, bucket: str) -> str:
        """Return the name of a bucket's stream. Raises CtlError."""
        if not _NAME.fullmatch(bucket):
            raise unusable(f"{bucket!r} is no name of a bucket: letters, digits, _ and -")
        return self.prefix + bucket

    def bucket(self, info: dict[str, Any]) -> str:
        """Return the bucket of a stream's info."""
        return str(info["config"]["name"]).removeprefix(self.prefix)

    async def listed(self, link: Link, pattern: str) -> list[dict[str, Any]]:
        """Return the infos of the streams that are such buckets."""
        infos = await link.pages("STREAM.LIST", "streams", {"subject": pattern})
        return [info for info in infos if info["config"]["name"].startswith(self.prefix)]

    async def info(self, link: Link, bucket: str) -> dict[str, Any]:
        """Return what the server says of a bucket's stream. Raises CtlError if there is none."""
        try:
            return await stream_info(link, self.stream(bucket))
        except CtlError as err:
            if str(err).startswith("no stream"):
                raise CtlError(f"no bucket {bucket!r}", self.listing) from None
            raise

    async def remove(self, link: Link, bucket: str, content: str, is_agreed: bool) -> None:
        """Remove a bucket with its `content`, if that is agreed to."""
        confirm(f"remove bucket {bucket} with {content}", is_agreed)
        await link.api(f"STREAM.DELETE.{self.stream(bucket)}")
        note(f"removed {bucket}")
        show_data(link.settings, {"removed": bucket})
