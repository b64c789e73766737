"""Verdict of /healthz: this node is current with its cluster, and its streams are served.

503 means that this node is not ready yet, or not any more: wait before the next one is restarted. A
stream whose only copy is lost is another matter, for it never comes back by itself: the node is
`degraded`, with 200, and names it; 503 for who asks for that stream, or with `strict`. So is one
that has set aside what a stream had acknowledged and has no more
(`node/integrity/discarded_entries.py`); that stream is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamd.limits import CURRENT_LAG_MAX, HUNG_S, SLICE_GROUPS
from streamd.net.monitoring.query import Query, flag
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.types import ACCOUNT, META_UID, StreamKey

if TYPE_CHECKING:  # a server without streams does not load that room
    from streamd.node.ports import GroupInfo, NodeHandle


class Health(NamedTuple):
    """A verdict: status 200, or what is wrong with which asset. With 200 and a text the node is
    well, but for the streams in `lost`, and why."""

    status: int = 200
    kind: str = ""
    text: str = ""
    names: dict[str, str] = {}  # noqa: RUF012 never written to
    lost: dict[StreamKey, str] = {}  # noqa: RUF012 likewise


def judge(node: NodeHandle, query: Query) -> Steps[Health]:
    """Judge what /healthz asks of streams. Raises BadQuery."""
    account, stream = query.get("account", ""), query.get("stream", "")
    if account not in ("", ACCOUNT) and not node.account(account).streams():
        text = f'JetStream account "{account}" not found'
        return Health(404, "ACCOUNT", text, {"account": account})
    if node.health.store_fault:
        return store_gone(node)
    waits_s = node.health.log_waits().now_s
    if waits_s >= HUNG_S:
        text = f"JetStream has waited {waits_s:.0f} s for the disk"
        return Health(503, "JETSTREAM", text)
    if node.is_clustered:
        verdict = _of_meta(node)
        if verdict.status != 200 or flag(query, "js-meta-only"):
            return verdict
    if flag(query, "js-server-only") or flag(query, "js-meta-only"):
        return Health()
    is_strict = flag(query, "strict")
    return (
        yield from _of_streams(
            node, account, stream, query.get("consumer", ""), is_strict=is_strict
        )
    )


def store_gone(node: NodeHandle) -> Health:
    """The verdict while nothing is stored here any more, whatever was asked."""
    text = f"JetStream is stopped: the store directory is gone: {node.health.store_fault}"
    return Health(503, "JETSTREAM", text)


def not_current(facts: GroupInfo) -> str:
    """Say why this node's member of a group is not current; empty if it is. `facts` are of
    `node.group_info`."""
    state = facts.get("state", "ok")
    if state != "ok":
        return str(facts.get("reason") or state)
    if not facts.get("leader"):
        return "no leader"
    behind = lag(facts)
    return f"{behind} entries behind" if behind > CURRENT_LAG_MAX else ""


def short_of_disks(facts: GroupInfo) -> str:
    """Say that acks of a group are on fewer disks than a majority of the replicas that are asked
    for, because only so many vote; empty if they are on enough."""
    found, wanted = facts.get("write_quorum", 0), facts.get("write_quorum_wanted", 0)
    if found >= wanted:
        return ""
    return f"each ack is on {found} disk{'s' * (found != 1)}, {wanted} are wanted"


def lag(facts: GroupInfo) -> int:
    """Entries known to be committed that this member has not applied."""
    return max(0, facts.get("commit", 0) - facts.get("applied", 0))


def _of_meta(node: NodeHandle) -> Health:
    facts = node.group_info(META_UID)
    if facts is None or not node.meta_leader:
        text = "JetStream has not established contact with a meta leader"
        return Health(503, "JETSTREAM", text)
    if not_current(facts):
        return Health(503, "JETSTREAM", "JetStream is not current with the meta leader")
    if shortage := short_of_disks(facts):
        return Health(503, "JETSTREAM", f"JetStream meta group: {shortage}")
    return Health()


def _of_streams(
    node: NodeHandle, account: str, stream: str, consumer: str, *, is_strict: bool
) -> Steps[Health]:
    """Judge one stream, and one of its consumers; "": all, of all accounts if none is named."""
    only = (account or ACCOUNT, stream) if stream else None
    lost = yield from lost_streams(node, only)
    failed: dict[StreamKey, str] = _damaged(node) | dict(node.failed)
    if node.is_clustered:
        failed = (yield from _not_current_streams(node, only)) | failed

    def is_asked_for(key: StreamKey) -> bool:
        return key == only if only is not None else account in ("", key[0])

    for key, reason in failed.items():
        if is_asked_for(key) and key not in lost:
            text = f"JetStream stream '{key[0]} > {key[1]}' is not current: {reason}"
            return Health(503, "STREAM", text, _names(key))
    for key, reason in lost.items():
        if is_asked_for(key):
            text = f"JetStream stream '{key[0]} > {key[1]}' is not served as it was: {reason}"
            status = 503 if stream or is_strict else 200
            return Health(status, "STREAM", text, _names(key), lost)
    set_aside = node.health.discarded_reasons()
    for key, reason in set_aside.items():
        if is_asked_for(key):
            text = f"JetStream stream '{key[0]} > {key[1]}' has lost messages: {reason}"
            status = 503 if is_strict else 200  # the stream itself is served, and whole again
            return Health(status, "STREAM", text, _names(key), set_aside)
    if only is None:
        return Health()
    names = _names(only)
    handle = node.account(only[0]).stream(stream)
    if handle is None:
        text = f'JetStream stream "{stream}" not found on account "{only[0]}"'
        return Health(404, "STREAM", text, names)
    if node.is_clustered:
        handle = node.replica(handle.uid)  # the leader's business, if there is none here
    if consumer and handle is not None and consumer not in handle.machine.consumers:
        text = (
            f'JetStream consumer "{consumer}" not found for stream "{stream}"'
            f' on account "{only[0]}"'
        )
        return Health(404, "CONSUMER", text, {**names, "consumer": consumer})
    return Health()


def _names(key: StreamKey) -> dict[str, str]:
    account, name = key
    return {"account": account, "stream": name}


def lost_streams(node: NodeHandle, only: StreamKey | None = None) -> Steps[dict[StreamKey, str]]:
    """Find the streams whose only copy is lost or damaged here, and what to do about it; `only`
    one, if it is named."""
    found: dict[StreamKey, str] = {}
    by_key, reason_of = node.meta.streams_by_key, node.health.lost_copy_reason
    for key in looked_at([only] if only else list(by_key)):
        if key is None:
            yield
            continue
        asset = by_key.get(key)
        reason = reason_of(asset) if asset is not None else ""
        if reason:
            found[key] = reason
    return dict(sorted(found.items()))


def _damaged(node: NodeHandle) -> dict[StreamKey, str]:
    """Streams whose copy here is damaged: what is left of it is served."""
    reasons = node.health.damage_reasons()
    if not reasons:
        return {}
    known = node.meta.streams_by_uid
    return {known[uid].key: text for uid, text in reasons.items() if uid in known}


def _not_current_streams(node: NodeHandle, only: StreamKey | None) -> Steps[dict[StreamKey, str]]:
    """Find the streams that should have a whole replica here and have not, and why."""
    found: dict[StreamKey, str] = {}
    by_key = node.meta.streams_by_key
    for key in looked_at([only] if only else list(by_key), SLICE_GROUPS):
        if key is None:
            yield
            continue
        asset = by_key.get(key)
        if asset is None or node.server_name not in asset.peers:
            continue
        facts = node.group_info(asset.uid)
        if facts is None:
            reason = "replica is missing"
        else:
            reason = not_current(facts) or short_of_disks(facts)
        if reason:
            found[key] = reason
    return dict(sorted(found.items()))
