"""Refusal of parts of a configuration that are read, and that the server does not serve yet."""

from __future__ import annotations

from typing import Final

from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks

UNSERVED_CONNECTION_TYPES: Final = frozenset(("MQTT", "MQTT_WS"))
"""Ways of connecting that the server does not offer. `IN_PROCESS` cannot be offered: no program
embeds it."""


def refuse_connection_types(types: frozenset[str], user: str, at: Value, blocks: KeyBlocks) -> None:
    """Refuse a user who may connect in ways only that are not offered."""
    if types and not types - UNSERVED_CONNECTION_TYPES - {"IN_PROCESS"}:
        blocks.refuse(
            at,
            f'"users.allowed_connection_types": {", ".join(sorted(types))} is not served by this'
            f' version: user "{user}" cannot log in',
        )
