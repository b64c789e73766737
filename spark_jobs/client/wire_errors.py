"""Errors between a task and a server. All of them can be pickled."""

from __future__ import annotations

from typing import Final

UNAVAILABLE: Final = 503
_FOR_GOOD: Final = (10039, 10076)  # JetStream is off for the account, or for the server


class WireError(Exception):
    """A request or connection failed in a way that trying again does not mend."""


class WireLost(WireError):
    """The connection, or every server, is gone: the same work may succeed on another server."""


class WireTimeout(WireError):
    """No answer to a request in time; it may or may not have been carried out."""


class NoResponders(WireError):
    """A request whose subject has no subscriber."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"nobody answers on {self.subject!r} (JetStream off, or no leader)"


class ApiError(WireError):
    """The JetStream API refused a request."""

    def __init__(self, code: int, err_code: int, description: str, request: str = "") -> None:
        super().__init__(code, err_code, description, request)
        self.code = code
        self.err_code = err_code
        self.description = description
        self.request = request

    @property
    def is_temporary(self) -> bool:
        """True if the same request may succeed soon: there is no leader at the moment."""
        return self.code == UNAVAILABLE and self.err_code not in _FOR_GOOD

    def __str__(self) -> str:
        place = f"{self.request}: " if self.request else ""
        return f"{place}{self.description} (code {self.code}, error {self.err_code})"
