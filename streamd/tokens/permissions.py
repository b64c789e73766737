"""Permissions of claims, as the server keeps those of all users."""

from __future__ import annotations

from streamd.config.user_options import Permissions, ResponsePermission
from streamd.tokens.claims import PermissionClaims, SubjectRules


def as_permissions(claims: PermissionClaims) -> Permissions | None:
    """Return the permissions; None if the claims say nothing, so that others' hold."""
    publish, subscribe, response = claims.publish, claims.subscribe, claims.response
    if not (publish.allow or publish.deny or subscribe.allow or subscribe.deny or response):
        return None
    permissions = Permissions(
        publish_allow=_allow(publish),
        publish_deny=[entry.encode() for entry in publish.deny],
        subscribe_allow=_allow(subscribe),
        subscribe_deny=[entry.encode() for entry in subscribe.deny],
    )
    if response is not None:
        default = ResponsePermission()
        permissions.allow_responses = ResponsePermission(
            response.max_msgs or default.max_msgs, response.ttl_ns or default.ttl_ns
        )
        if permissions.publish_allow is None:
            permissions.publish_allow = []  # to replies alone
    return permissions


def _allow(rules: SubjectRules) -> list[bytes] | None:
    return [entry.encode() for entry in rules.allow] or None
