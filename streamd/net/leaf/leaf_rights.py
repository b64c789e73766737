"""Rights of one leaf link: which subjects may cross it, in each direction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamd.limits import RIGHTS_CACHE_MAX
from streamd.subjects import collides, is_literal, is_subset, matches

LOOP_PREFIX: Final = b"$LDS."
"""Prefix of the subject by which each account recognizes its own interest coming back."""

_ALWAYS_APART: Final = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
"""Subjects of JetStream: each server answers for its own, and is asked by its domain from afar."""


class Rule:
    """Allow and deny lists of subjects; an allow list of None allows all."""

    __slots__ = ("_verdicts", "allow", "deny")

    def __init__(self, allow: Iterable[bytes] | None = None, deny: Iterable[bytes] = ()) -> None:
        self.allow = None if allow is None else tuple(allow)
        self.deny = tuple(deny)
        self._verdicts: dict[bytes, bool] = {}

    def permits(self, subject: bytes) -> bool:
        """Return True if a message on the literal `subject` may cross."""
        verdict = self._verdicts.get(subject)
        if verdict is None:
            verdict = self.allow is None or any(matches(entry, subject) for entry in self.allow)
            verdict = verdict and not any(matches(entry, subject) for entry in self.deny)
            if len(self._verdicts) >= RIGHTS_CACHE_MAX:
                self._verdicts.clear()
            self._verdicts[subject] = verdict
        return verdict

    def permits_interest(self, pattern: bytes) -> bool:
        """Return True if interest in `pattern` may be told: it may be wider than what is allowed,
        for messages are checked one by one."""
        if any(is_subset(pattern, entry) for entry in self.deny):
            return False
        if self.allow is None or any(is_subset(pattern, entry) for entry in self.allow):
            return True
        return not is_literal(pattern) and any(collides(entry, pattern) for entry in self.allow)


class LeafRights:
    """Rules of both directions of a link, as this server sees them."""

    __slots__ = ("receive", "send")

    def __init__(self, *, send: Rule, receive: Rule, domain: str = "") -> None:
        """`domain` is of this server's JetStream, which nobody else has to answer for."""
        own = (b"$JS.%b.API.>" % domain.encode(),) if domain else ()
        self.send = Rule(send.allow, (*send.deny, *_ALWAYS_APART, *own))
        self.receive = Rule(receive.allow, (*receive.deny, *_ALWAYS_APART))

    def may_tell(self, pattern: bytes) -> bool:
        """Return True if the other end may learn of interest in `pattern` here."""
        return pattern.startswith(LOOP_PREFIX) or self.receive.permits_interest(pattern)

    def may_be_told(self, pattern: bytes) -> bool:
        """Return True if the other end may have interest in `pattern`."""
        if pattern.startswith(LOOP_PREFIX) or not is_literal(pattern):
            return True
        return self.send.permits(pattern)
