"""Users that certificates name (`verify_and_map`). Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamd.net.tls.facts import Dn, PeerCertificate, Rdn

_ESCAPABLE: Final = ',+"\\<>; #='


class CertificateUsers:
    """Finds the user that a certificate names.

    In this order: an alternative name; the subject, against users that are distinguished names, in
    its own order and then in any; Go's text of the subject with its domain components, and without.
    """

    def __init__(self, users: Iterable[str]) -> None:
        self._users = frozenset(users)
        self._by_dn: dict[Dn, str] = {}
        self._by_parts: dict[tuple[int, frozenset[Rdn]], str] = {}
        for user in sorted(self._users):
            dn = parse_dn(user) if "=" in user else None
            if dn is not None:
                self._by_dn.setdefault(dn, user)
                self._by_parts.setdefault((len(dn), frozenset(dn)), user)

    def find(self, certificate: PeerCertificate) -> str | None:
        """Return the name of the user; None: it is no one's certificate."""
        for name in certificate.names:
            if name in self._users:
                return name
        subject = certificate.subject
        if subject.dn is not None:
            user = self._by_dn.get(subject.dn)
            if user is None:
                user = self._by_parts.get((len(subject.dn), frozenset(subject.dn)))
            if user is not None:
                return user
        texts = [subject.known_text]
        if subject.domain_components:
            texts.insert(0, f"{subject.known_text},{subject.domain_components}")
        return next((text for text in texts if text in self._users), None)


def parse_dn(text: str) -> Dn | None:
    """Read a distinguished name such as `CN=carol, OU=eng+L=x`; None: the text is none."""
    rdns: list[Rdn] = []
    pairs: list[tuple[str, str]] = []
    for part, end in _split(text):
        kind, equals, value = part
        if not equals or not kind:
            return None
        pairs.append((kind.upper(), value))
        if end != "+":
            rdns.append(frozenset(pairs))
            pairs = []
    return tuple(rdns) or None


def _split(text: str) -> Iterable[tuple[tuple[str, str, str], str]]:
    """Yield ((type, "=" or "", value), the separator behind it or "") with escapes undone."""
    kind, equals = "", ""
    value: list[str] = []
    is_escaped: list[bool] = []
    at = 0

    def take() -> str:
        while value and value[-1] == " " and not is_escaped[-1]:
            value.pop()
            is_escaped.pop()
        taken = "".join(value)
        value.clear()
        is_escaped.clear()
        return taken

    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            literal, at = _unescape(text, at)
            value.append(literal)
            is_escaped.append(True)
        elif char == "=":
            kind, equals = take(), "="
        elif char in ",+":
            yield (kind, equals, take()), char
            kind = equals = ""
        elif char != " " or value:
            value.append(char)
            is_escaped.append(False)
    if value or equals:
        yield (kind, equals, take()), ""


def _unescape(text: str, at: int) -> tuple[str, int]:
    """Return what the escape before `at` stands for, and where the text goes on."""
    if text[at : at + 1] in _ESCAPABLE and at < len(text):
        return text[at], at + 1
    try:
        return bytes.fromhex(text[at : at + 2]).decode("latin-1"), at + 2
    except ValueError:
        return "\\", at
