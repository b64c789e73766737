"""Failures that end `streamctl` with a text for people, and its exit statuses."""

from __future__ import annotations

from typing import Final

from streamd.errors import StreamdError

FAILED: Final = 1
"""The command did not succeed, or what it looked at is beyond a threshold."""
UNUSABLE: Final = 2
"""The command line can't be carried out as it stands, or a question was not answered."""
INTERRUPTED: Final = 130


class CtlError(StreamdError):
    """Failure of a command: its text, what to try next, and the exit status that it ends with."""

    def __init__(self, text: str, next_step: str = "", status: int = FAILED) -> None:
        super().__init__(text)
        self.next_step = next_step
        self.status = status


class ApiError(CtlError):
    """Refusal of a JetStream request, as the server words it."""

    def __init__(self, description: str, code: int, err_code: int, next_step: str = "") -> None:
        super().__init__(f"{description} ({err_code})" if err_code else description, next_step)
        self.description = description
        self.code = code
        self.err_code = err_code


def unusable(text: str, next_step: str = "") -> CtlError:
    """Return the failure of a command line that can't be carried out."""
    return CtlError(text, next_step, UNUSABLE)
