"""Templates in permissions of a scope: `team.{{tag(team)}}.>` becomes each user's own subjects.

A tag with several values makes one subject of each, several tags one of each combination. Entries
to allow that come to no valid subject are left out; with none left, nothing is allowed. An entry to
deny that comes to none refuses the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Final

from streamd.errors import TokenError
from streamd.limits import TEMPLATE_SUBJECTS_MAX
from streamd.subjects import is_valid
from streamd.tokens.claims import AccountClaims, SubjectRules, UserClaims, UserRights

_TEMPLATE: Final = re.compile(r"\{\{([^}]+)\}\}")


def filled(template: UserRights, user: UserClaims, account: AccountClaims) -> UserRights:
    """Return the rights of a user of the scope; raise TokenError if they cannot be made."""
    permissions = template.permissions
    names = _Names(user, account)
    return replace(
        template,
        permissions=replace(
            permissions,
            publish=_rules(permissions.publish, names),
            subscribe=_rules(permissions.subscribe, names),
        ),
    )


class _Names:
    """Values of the functions in templates."""

    __slots__ = ("_account_tags", "_tags", "_values")

    def __init__(self, user: UserClaims, account: AccountClaims) -> None:
        self._values = {
            "name()": user.registered.name,
            "subject()": user.registered.subject,
            "account-name()": account.registered.name,
            "account-subject()": user.issuer_account,
        }
        self._tags = user.registered.tags
        self._account_tags = account.registered.tags

    def of(self, call: str) -> Sequence[str]:
        """Return the values of a function; raise TokenError if it is unknown."""
        written = call.strip()
        function = written.lower()
        value = self._values.get(function)
        if value is not None:
            return (value,)
        for opening, tags in (("tag(", self._tags), ("account-tag(", self._account_tags)):
            if function.startswith(opening) and function.endswith(")"):
                prefix = function[len(opening) : -1] + ":"
                if not written.startswith(opening):
                    return ()  # as in nats-server, which knows these functions in lower case only
                return [tag[len(prefix) :] for tag in tags if tag.startswith(prefix)]
        raise TokenError(f"unknown function {call[:64]!r} in a template")


def _rules(rules: SubjectRules, names: _Names) -> SubjectRules:
    allow = _entries(rules.allow, names, is_strict=False)
    deny = _entries(rules.deny, names, is_strict=True)
    if rules.allow and not allow and ">" not in deny:
        deny = (*deny, ">")
    return SubjectRules(allow, deny)


def _entries(entries: Sequence[str], names: _Names, *, is_strict: bool) -> tuple[str, ...]:
    """Return a list with its templates filled in; one without any is left as it is."""
    calls = [tuple(dict.fromkeys(_TEMPLATE.findall(entry))) for entry in entries]
    if not any(calls):
        return tuple(entries)
    found: list[str] = []
    for entry, functions in zip(entries, calls, strict=True):
        choices = [names.of(function) for function in functions]
        if (count := prod(map(len, choices))) + len(found) > TEMPLATE_SUBJECTS_MAX:
            raise TokenError(f"{count} subjects of one template: at most {TEMPLATE_SUBJECTS_MAX}")
        subjects = [
            _replaced(entry, dict(zip(functions, chosen, strict=True)))
            for chosen in product(*choices)
        ]
        valid = [subject for subject in subjects if is_valid(subject.encode())]
        if is_strict and (not subjects or len(valid) < len(subjects)):
            raise TokenError("generated invalid subject")
        found += valid
    return tuple(found)


def _replaced(entry: str, values: Mapping[str, str]) -> str:
    """Return `entry` with each template replaced, once: values are not looked through again."""
    return _TEMPLATE.sub(lambda match: values[match.group(1)], entry)
