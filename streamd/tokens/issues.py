"""Issues of claims: all that is wrong with them, in the words of NATS's tools, and common checks.

Errors and issues of time make claims invalid; warnings do not. An update of an account is refused
for errors alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final
from zoneinfo import ZoneInfo

from streamd.tokens.claims import PermissionClaims, RegisteredClaims, SubjectRules, UserRights

_TIME: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,]\d{1,9})?", re.ASCII)
_NETWORK: Final = re.compile(r"[0-9A-Fa-f.:]+/\d{1,3}", re.ASCII)
DAY_S: Final = 24 * 3600


class Issues:
    """Issues of one set of claims, in order."""

    __slots__ = ("_all", "errors")

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._all: list[str] = []

    def add(self, text: str) -> None:
        """Add an error."""
        self.errors.append(text)
        self._all.append(text)

    def add_time(self, text: str) -> None:
        """Add that claims are not valid at this time: they were, or will be."""
        self._all.append(text)

    @property
    def first(self) -> str:
        return self._all[0] if self._all else ""

    def __bool__(self) -> bool:
        return bool(self._all)

    def __str__(self) -> str:
        return f"&{{Issues:[{' '.join(self._all)}]}}"


def quoted(text: str) -> str:
    """Return `text` in double quotes, as Go's %q."""
    return json.dumps(text, ensure_ascii=False)


def check_times(claims: RegisteredClaims, now_s: int, issues: Issues) -> None:
    """Add that claims are expired, or not valid yet."""
    if 0 < claims.expires_s < now_s:
        issues.add_time("claim is expired")
    if claims.not_before_s > 0 and claims.not_before_s > now_s:
        issues.add_time("claim is not yet valid")


def check_subject(subject: str, issues: Issues) -> None:
    if not subject:
        issues.add("subject cannot be empty")
        return
    if " " in subject:
        issues.add(f"subject {quoted(subject)} cannot have spaces")
    if subject[0] == "." or subject[-1] == ".":
        issues.add(f"subject {quoted(subject)} cannot start or end with a `.`")
    if ".." in subject:
        issues.add(f"subject {quoted(subject)} cannot contain consecutive `.`")


def check_permissions(permissions: PermissionClaims, issues: Issues) -> None:
    _check_rules(permissions.subscribe, issues, has_queues=True)
    _check_rules(permissions.publish, issues, has_queues=False)


def _check_rules(rules: SubjectRules, issues: Issues, *, has_queues: bool) -> None:
    for entry in (*rules.allow, *rules.deny):
        words = entry.split(" ")
        if len(words) > 2:
            issues.add(f'Permission Subject "{entry}" contains too many spaces')
            continue
        for word in words:
            check_subject(word, issues)
        if len(words) == 2 and not has_queues:
            issues.add(f'Permission Subject "{entry}" is not allowed to contain queue')


def check_rights(rights: UserRights, issues: Issues) -> None:
    """Add what is wrong with permissions, networks and times of a user."""
    check_permissions(rights.permissions, issues)
    for source in rights.sources:
        if network_of(source) is None:
            issues.add(f"invalid cidr {quoted(source)} in user src limits")
    for window in rights.times:
        for name, time in (("start", window.start), ("end", window.end)):
            if not time:
                issues.add(f"time ranges {name} must contain {_article(name)} {name}")
            elif seconds_of(time) is None:
                issues.add(f"{name} in time range is invalid {quoted(time)}")
    if rights.location and zone_of(rights.location) is None and rights.location != "Local":
        issues.add(
            f"could not parse iana time zone by name: unknown time zone {rights.location[:128]}"
        )


def _article(word: str) -> str:
    return "an" if word == "end" else "a"


def seconds_of(time: str) -> int | None:
    """Return seconds since midnight of `15:04:05`; None if it is no time of day."""
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds


def network_of(text: str) -> IPv4Network | IPv6Network | None:
    """Return the network of `10.0.0.0/8`; None if it is none. The bits of a host are ignored."""
    if not _NETWORK.fullmatch(text):
        return None
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


def zone_of(name: str) -> ZoneInfo | None:
    """Return the time zone of a name such as `Europe/Berlin`; None if there is none."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return None


def has_wildcards(subject: str) -> bool:
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def is_contained(subject: str, other: str) -> bool:
    """Return True if `other`, as a pattern, covers `subject`, a pattern too."""
    return is_contained_split(subject.split("."), other.split("."))


def is_contained_split(mine: list[str], theirs: list[str]) -> bool:
    """`is_contained` on subjects that are split into tokens already."""
    if len(mine) < len(theirs) or (len(mine) > len(theirs) and theirs[-1] != ">"):
        return False
    for position, token in enumerate(theirs):
        if token != mine[position] and token != "*":
            return token == ">" and position == len(theirs) - 1
    return True


def joined(errors: Iterable[str]) -> str:
    """Return errors as the answer to an update lists them."""
    return f"[{' '.join(errors)}]"
