"""Tracing of one server's messages: which of them are traced, and the trace of the one that passes
from one account to another right now."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from streamd.callbacks import ignore
from streamd.machine.message_headers import TRACE_DEST, TRACE_DISABLED
from streamd.net.pubsub.message_trace import (
    HOP,
    ORIGIN_ACCOUNT,
    Kind,
    MessageTrace,
    disabled,
    first_value,
    header_values,
    is_only_traced,
    is_sampled,
)
from streamd.subjects import is_valid_literal


class Sampling(Protocol):
    """Messages of an account that are traced because their `traceparent` says so."""

    @property
    def destination(self) -> str: ...

    @property
    def sampling(self) -> int:
        """Per cent of them."""


class Source(Protocol):
    """Connection that a message came by."""

    @property
    def cid(self) -> int: ...

    @property
    def name(self) -> str: ...


class MessageTracing:
    """Begins traces. All subject spaces of a server share it."""

    def __init__(self) -> None:
        self.send: Callable[[MessageTrace], None] = ignore
        """Sends the document of a trace that is complete."""
        self._passing: MessageTrace | None = None

    def begin(
        self,
        source: Source,
        kind: Kind,
        account: str,
        subject: bytes,
        headers: bytes,
        payload: bytes,
        sampling: Sampling | None,
    ) -> tuple[MessageTrace | None, bytes]:
        """Return the trace of a message, if it has one, and its headers as they go on.

        A trace may be without destination: of a message that nevertheless has to reach nobody.
        """
        header = header_values(headers)
        destination = first_value(header, TRACE_DEST)
        if destination == TRACE_DISABLED.decode():
            return None, headers
        is_only = bool(destination) and is_only_traced(header)
        is_external = not destination
        if is_external:
            if sampling is None or not is_sampled(header):
                return None, headers
            if kind is Kind.CLIENT and random.randrange(100) >= sampling.sampling:
                return None, disabled(headers)  # nor by a server that it comes to
            destination = sampling.destination
        if kind is Kind.CLIENT and first_value(header, ORIGIN_ACCOUNT):
            # Only servers may say so: the events would be another account's.
            destination = ""
            headers = disabled(headers)
        to = destination.encode()
        if not is_valid_literal(to):
            if not is_only:
                return None, headers
            to = b""
        trace = MessageTrace(
            self._send,
            header,
            len(headers) + len(payload),
            account=account,
            destination=to,
            is_only=is_only,
            is_external=is_external,
        )
        if kind is not Kind.CLIENT:
            trace.hop = first_value(header, HOP)
        trace.came_in(kind, source.cid, source.name, account, subject)
        return trace, headers

    def _send(self, trace: MessageTrace) -> None:
        self.send(trace)

    # --- from one account to another --------------------------------------------------------------

    def pass_on(self, trace: MessageTrace, deliver: Callable[[], int]) -> int:
        """Call `deliver` of a message to an import, which takes its trace at once (`take`)."""
        before, self._passing = self._passing, trace
        try:
            return deliver()
        finally:
            self._passing = before

    def take(self) -> MessageTrace | None:
        """Return the trace of the message that an import is given right now; it is nobody else's
        from here on."""
        trace, self._passing = self._passing, None
        return trace
