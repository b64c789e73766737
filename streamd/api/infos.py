"""StreamInfo and ConsumerInfo: how assets and their state are shown to clients."""

from __future__ import annotations

from streamd import errors, limits
from streamd.api import cluster_infos, consumer_configs, stream_configs, times
from streamd.api.request import ApiContext
from streamd.machine import extension_settings
from streamd.machine.asset_configs import StreamConfig, StreamSource
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_lag import ConsumerLag, lag_of
from streamd.machine.streams.origins import MIRROR, index_name
from streamd.machine.streams.stream import StreamMachine
from streamd.node.ports import ConsumerView, NodeHandle, OriginInfo, StreamHandle
from streamd.types import Document, Seq, Uid


def stream_info(context: ApiContext, handle: StreamHandle, *, is_listed: bool = False) -> Document:
    """Return the StreamInfo of a stream. In lists the server's dynamic metadata is left out."""
    machine = handle.machine
    config = stream_configs.shown(machine.config)
    if not is_listed:
        config["metadata"] = with_dynamic_metadata(context, config.get("metadata", {}))
    info: Document = {
        "config": config,
        "created": times.format_ns(machine.created_ns),
        "state": stream_state(machine.state(), machine.config),
    }
    if handle.unreadable:
        info["state"]["lost"] = _lost(handle)
    if context.domain:
        info["domain"] = context.domain
    if context.is_clustered:
        info["cluster"] = cluster_infos.cluster_block(context.node, handle.uid, machine.config)
    info |= origins(handle)
    info["ts"] = times.format_ns(context.clock.now_ns())
    return info


def blocks(node: NodeHandle, uid: Uid) -> Document:
    """Return what a stream's blocks take on this node's disk: less where it is compressed."""
    sizes = node.block_bytes(uid)
    if sizes is None:
        return {}
    content, stored = sizes
    ratio = round(content / stored, 2) if stored else 1.0
    return {"blocks": {"bytes": content, "stored_bytes": stored, "ratio": ratio}}


def origins(handle: StreamHandle) -> Document:
    """Return `mirror` or `sources` of a StreamInfo; of other streams nothing."""
    config = handle.machine.config
    mirror, sources = config.get("mirror"), config.get("sources")
    if not (mirror or sources):
        return {}
    infos = handle.origin_infos()
    if mirror:
        return {"mirror": _origin(mirror, infos.get(MIRROR), has_seq=False)}
    return {
        "sources": [
            _origin(each, infos.get(index_name(each)), has_seq=True) for each in sources or ()
        ]
    }


def _origin(source: StreamSource, info: OriginInfo | None, *, has_seq: bool) -> Document:
    shown: Document = {"name": source.get("name", "")}
    if "external" in source:
        shown["external"] = source["external"]
    shown["lag"] = info.lag if info is not None else 0
    if has_seq and info is not None and info.seq:
        shown["seq"] = info.seq
    shown["active"] = info.active_ns if info is not None else -1
    if info is not None and info.error:
        shown["error"] = info.error
    if source.get("filter_subject"):
        shown["filter_subject"] = source["filter_subject"]
    if source.get("subject_transforms"):
        shown["subject_transforms"] = source["subject_transforms"]
    return shown


def stream_state(state: Document, config: StreamConfig) -> Document:
    """Return the StreamState for a machine's numbers."""
    last_seq = state["last_seq"]
    shown: Document = {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": _first_seq(state["first_seq"], last_seq, config),
        "first_ts": times.format_ns(state["first_ts"]),
        "last_seq": last_seq,
        "last_ts": times.format_ns(state["last_ts"]),
    }
    for field in ("num_subjects", "num_deleted"):
        if state.get(field):
            shown[field] = state[field]
    shown["consumer_count"] = state["consumer_count"]
    return shown


def _first_seq(first_seq: Seq, last_seq: Seq, config: StreamConfig) -> Seq:
    """Return the first sequence as it is shown: that of a stream in which nothing was ever stored,
    purged or skipped is 0, or 1 if a later one was asked for."""
    return first_seq if last_seq else int(bool(config.get("first_seq")))


def stream_numbers(machine: StreamMachine) -> tuple[int, ...]:
    """Return messages, bytes, first and last sequence, consumers and subjects of a stream, as
    `stream_state` shows them: for pages that show all streams."""
    index = machine.index
    last_seq = index.last_seq
    return (
        index.count,
        index.live.bytes,
        _first_seq(index.first_seq, last_seq, machine.config),
        last_seq,
        machine.listed_count,
        len(index.subjects.rows),
    )


def _lost(handle: StreamHandle) -> Document:
    """Return the LostStreamData of messages that are stored and can't be read: the first of them,
    their bytes, and those of all others whose block is gone. Other blocks are counted to learn the
    latter: of a stream with many messages the number is 0 until some StreamInfos have done so."""
    index = handle.machine.index
    seqs = [seq for seq in handle.unreadable[: limits.UNREADABLE_SHOWN] if index.live.has(seq)]
    byte_count = index.unreadable.bytes_of(seqs, count_max=limits.UNREADABLE_COUNTED)
    return {"msgs": seqs, "bytes": byte_count or 0}


def consumer_info(
    context: ApiContext,
    handle: StreamHandle,
    consumer: Consumer,
    *,
    is_listed: bool = False,
    has_lag: bool = False,
) -> Document:
    """Return the ConsumerInfo of a consumer."""
    numbers = consumer.info()
    view = handle.consumer_view(consumer.name)
    now_ns = context.clock.now_ns()
    config = consumer_configs.shown(consumer.config)
    # Pausing changes the config, and with it the level it needs, without passing by the API's door.
    metadata = stream_configs.static_metadata(
        config.get("metadata", {}), consumer_configs.required_level(config)
    )
    config["metadata"] = metadata if is_listed else with_dynamic_metadata(context, metadata)
    delivered, floor = dict(numbers["delivered"]), dict(numbers["ack_floor"])
    if view is not None and view.last_delivered_ns:
        delivered["last_active"] = times.format_ns(view.last_delivered_ns)
    if view is not None and view.last_acked_ns:
        floor["last_active"] = times.format_ns(view.last_acked_ns)
    info: Document = {
        "stream_name": handle.name,
        "name": consumer.name,
        "created": times.format_ns(consumer.created_ns),
        "config": config,
        "delivered": delivered,
        "ack_floor": floor,
        "num_ack_pending": numbers["num_ack_pending"],
        "num_redelivered": numbers["num_redelivered"],
        "num_waiting": view.num_waiting if view is not None else 0,
        "num_pending": numbers["num_pending"],
    }
    if context.is_clustered:
        info["cluster"] = cluster_infos.cluster_block(
            context.node, handle.uid, handle.machine.config, consumer.uid
        )
    if view is not None and view.is_push_bound:
        info["push_bound"] = True
    if consumer.paused_until_ns > now_ns:
        info["paused"] = True
        info["pause_remaining"] = consumer.paused_until_ns - now_ns
    info["ts"] = times.format_ns(now_ns)
    groups = consumer.config.get("priority_groups")
    if groups:
        info["priority_groups"] = [_priority_group(groups[0], view)]
    if has_lag or (consumer.config.get("metadata") or {}).get(extension_settings.LAG) == "true":
        info |= _lag(handle, consumer, now_ns)
    return info


def consumer_numbers(handle: StreamHandle, consumer: Consumer) -> tuple[int, ...]:
    """Return the sequences delivered (of the consumer, of the stream) and of the ack floor, and how
    many messages wait for acks, were delivered again, are asked for, and are to come, as
    `consumer_info` shows them: for pages that show all consumers."""
    numbers = consumer.info()
    view = handle.consumer_view(consumer.name)
    return (
        *numbers["delivered"].values(),
        *numbers["ack_floor"].values(),
        numbers["num_ack_pending"],
        numbers["num_redelivered"],
        view.num_waiting if view is not None else 0,
        numbers["num_pending"],
    )


def consumer_ages(consumer: Consumer, now_ns: int) -> tuple[int, ...]:
    """Return the ages in ns of the oldest message that is not acked, and of the oldest that is not
    delivered, 0 if there is none; empty if the disk does not say: the block is reported by who
    reads it."""
    try:
        lag = lag_of(consumer)
    except errors.CorruptionError:
        return ()
    return _ages(lag, now_ns)


def _ages(lag: ConsumerLag, now_ns: int) -> tuple[int, int]:
    unprocessed = max(0, now_ns - lag.unprocessed_ts) if lag.unprocessed_seq else 0
    undelivered = max(0, now_ns - lag.undelivered_ts) if lag.undelivered_seq else 0
    return unprocessed, undelivered


def _lag(handle: StreamHandle, consumer: Consumer, now_ns: int) -> Document:
    """Return how far a consumer is behind in time, and its dead letters: of ours, and only for who
    asks (docs/extensions.md)."""
    try:
        lag = lag_of(consumer)
    except errors.CorruptionError:
        return {}  # the disk does not say; the block is reported by who reads it
    unprocessed, undelivered = _ages(lag, now_ns)
    shown: Document = {"unprocessed_age": unprocessed, "undelivered_age": undelivered}
    for name, seq, ts in (
        ("unprocessed", lag.unprocessed_seq, lag.unprocessed_ts),
        ("undelivered", lag.undelivered_seq, lag.undelivered_ts),
    ):
        if seq:
            shown[f"{name}_seq"] = seq
            shown[f"{name}_time"] = times.format_ns(ts)
    found: Document = {"lag": shown}
    subject = extension_settings.dead_letter(consumer.config)
    if subject:
        waiting = handle.machine.content.letters.count_of(consumer.uid)
        letters: Document = {"subject": subject.decode(), "waiting": waiting}
        error = handle.dead_letter_error(subject) if waiting else ""
        if error:
            letters["error"] = error
        found["dead_letters"] = letters
    return found


def _priority_group(group: str, view: ConsumerView | None) -> Document:
    """The client that has a priority group for itself. Only a consumer's first group is in use."""
    shown: Document = {"group": group}
    pin_id = view.pinned_id if view is not None else ""
    if pin_id:
        shown["pinned_client_id"] = pin_id
    shown["pinned_ts"] = times.format_ns(view.pinned_ns if view is not None else 0)
    return shown


def with_dynamic_metadata(context: ApiContext, metadata: dict[str, str]) -> dict[str, str]:
    """Return `metadata` with what is true of this server rather than of the asset."""
    shown = dict(metadata)
    shown["_nats.ver"] = context.server.version
    shown["_nats.level"] = str(limits.API_LEVEL)
    return dict(sorted(shown.items()))
