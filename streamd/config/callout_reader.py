"""Reader of the `auth_callout` block. Error texts are nats-server's."""

from __future__ import annotations

from functools import partial
from typing import Any

from streamd.config.callout_options import CalloutOptions
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, put_in
from streamd.config.values import as_text, quoted, shown
from streamd.tokens.nkeys import KeyKind, is_valid_public


def read_callout(block: Value, blocks: KeyBlocks) -> CalloutOptions:
    """Read the block. Raises ConfigError."""
    if not isinstance(block.raw, dict):
        raise block.error(f"Expected authorization callout to be a map/struct, got {shown(block)}")
    settings: dict[str, Any] = {}
    put = partial(put_in, settings)

    def issuer(value: Value) -> str:
        key = as_text(value)
        if not is_valid_public(KeyKind.ACCOUNT, key):
            raise value.error(
                f"Expected callout user to be a valid public account nkey, got {quoted(key)}"
            )
        return key

    def xkey(value: Value) -> str:
        key = as_text(value)
        if not is_valid_public(KeyKind.CURVE, key):
            raise value.error(f"Expected callout xkey to be a valid public xkey, got {quoted(key)}")
        return key

    blocks.read(
        block,
        {
            "issuer": put("issuer", issuer),
            "account|acc": put("account", as_text),
            "auth_users|users": put("users", lambda v: _names(v, "auth_users")),
            "xkey|key": put("xkey", xkey),
            "allowed_accounts": put("allowed_accounts", lambda v: _names(v, "allowed accounts")),
        },
        "authorization.auth_callout.",
        unknown="Unknown field {} parsing authorization callout",
    )
    last = next(reversed(block.raw.values()), block)
    if not settings.get("issuer"):
        raise last.error("Authorization callouts require an issuer to be specified")
    if not settings.get("users"):
        raise last.error("Authorization callouts require authorized users to be specified")
    if not settings.get("account"):
        settings.pop("account", None)
    return CalloutOptions(**settings)


def _names(value: Value, what: str) -> tuple[str, ...]:
    if not isinstance(value.raw, list):
        # Their server names its own type of a value here, whatever the value is.
        raise value.error(f"Expected {what} field to be an array, got *conf.token")
    return tuple(as_text(each) for each in value.raw)
