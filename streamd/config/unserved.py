"""Refusal of parts of a configuration that are read, and that the server does not serve yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks

UNSERVED_YET: Final[Mapping[str, str]] = {
    "auth_callout": "those it lets in cannot log in",
    "operator": "those it lets in cannot log in",
    "trusted_keys": "those it lets in cannot log in",
    "resolver": "account tokens are not looked up",
    "default_sentinel": "clients that show no token cannot log in",
}
"""Part of the configuration: what the server does in spite of it. A part without a line is
served."""

UNSERVED_CONNECTION_TYPES: Final = frozenset(("MQTT", "MQTT_WS"))
"""Ways of connecting that the server does not offer. `IN_PROCESS` cannot be offered: no program
embeds it."""


def refuse_unserved(part: str, value: Value, blocks: KeyBlocks) -> None:
    """Refuse `value`, the setting of a part that is not served yet. It is read all the same, so
    that its mistakes are told."""
    if part in UNSERVED_YET:
        blocks.refuse(value, f'"{value.key}" is not served by this version: {UNSERVED_YET[part]}')


def refuse_connection_types(types: frozenset[str], user: str, at: Value, blocks: KeyBlocks) -> None:
    """Refuse a user who may connect in ways only that are not offered."""
    if types and not types - UNSERVED_CONNECTION_TYPES - {"IN_PROCESS"}:
        blocks.refuse(
            at,
            f'"users.allowed_connection_types": {", ".join(sorted(types))} is not served by this'
            f' version: user "{user}" cannot log in',
        )
