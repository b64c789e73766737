"""Rows of the benchmark, each with the ratio to the peer of the same run that it should reach."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Row:
    """Line of the table. `call` names a row of `load_rows`, or a special row of `suite`.

    `measure` is the figure that is compared: a rate (more is better) or a time (less is better).
    `reach_lazy` and `reach_always` are ratios ours/peer we mean to reach (peer/ours for times),
    against the peer with its default flushing and with `sync_interval: always`.
    """

    name: str
    title: str
    call: str
    args: dict[str, Any] = field(default_factory=dict)
    fill: int = 0
    fill_size: int = 0
    measure: str = "rate"
    reach_lazy: float = 0.0
    reach_always: float = 0.0
    is_jetstream: bool = True
    door: str = ""  # benchmarks/doors.py; "": a plain socket, and no accounts
    jetstream: str = ""  # lines of that block of the configuration
    compression: str = "none"  # of the stream that is filled; of one that is published to: `args`
    is_replicated: bool = False  # three servers, a stream with three replicas

    @property
    def is_time(self) -> bool:
        return self.measure != "rate"


SIZES = {"128": 128, "1k": 1024, "16k": 16384}
FILLS = {"128": 400_000, "1k": 150_000, "16k": 15_000}
SIZE_NAMES = {"128": "128 B", "1k": "1 KiB", "16k": "16 KiB"}


def _rows() -> list[Row]:
    rows: list[Row] = []
    for key, size in SIZES.items():
        named = SIZE_NAMES[key]
        is_small = key == "128"
        lazy = {"128": 0.9, "1k": 0.0, "16k": 0.7}[key]
        rows += [
            Row(f"pub_async_{key}", f"publish async, window 1000, {named}", "publish",
                {"size": size, "window": 1000}, reach_lazy=lazy,
                reach_always=30.0 if is_small else 0.0),
            Row(f"pub_async8_{key}", f"publish async, 8 connections x 500, {named}", "publish",
                {"size": size, "window": 500, "connections": 8},
                reach_lazy=1.0 if is_small else 0.0),
            Row(f"pub_sync_{key}", f"publish, one in flight, {named}", "publish",
                {"size": size, "window": 1}, measure="p50_us",
                reach_always=1.0 if is_small else 0.0),
            Row(f"pub_sync16_{key}", f"publish, 16 connections, one in flight each, {named}",
                "publish", {"size": size, "window": 1, "connections": 16},
                reach_always=3.0 if is_small else 0.0),
            Row(f"fetch_{key}", f"pull, fetch 500, explicit acks, {named}", "fetch",
                {"size": size}, fill=FILLS[key], fill_size=size,
                reach_lazy=0.7 if is_small else 0.0),
            Row(f"ordered_{key}", f"ordered consumer, replay, {named}", "push",
                {"size": size, "is_ordered": True}, fill=FILLS[key], fill_size=size,
                reach_lazy=0.7 if is_small else 0.0),
            Row(f"push_{key}", f"push without acks, {named}", "push",
                {"size": size, "is_ordered": False}, fill=FILLS[key], fill_size=size,
                reach_lazy=0.6 if is_small else 0.0),
        ]  # fmt: skip
    rows += [
        # Long enough for the disk to matter: for a second or two, memory takes what is not synced.
        Row("pub_async_16k_8s", "publish async, window 1000, 16 KiB, for 8 s", "publish",
            {"size": 16384, "window": 1000, "seconds": 8.0}, reach_lazy=0.7),
        Row("beside_1k", "publish, one in flight, beside window 1000 of 1 KiB elsewhere",
            "publish_beside", {"size": 1024}, measure="p999_us"),
        Row("put_keys_1k", "put to a bucket of 150,000 keys, random, window 1000, 1 KiB",
            "put_keys", {"size": 1024, "keys": 150_000, "window": 1000}),
        Row("get_last_128", "direct get, last of one of 1,000 subjects, one in flight", "get_last",
            {"size": 128}, measure="p50_us"),
        Row("get_last16_128", "direct get, last per subject, 16 connections", "get_last",
            {"size": 128, "connections": 16}),
        Row("msg_get_128", "get from the leader, last of one of 1,000 subjects, one in flight",
            "get_last", {"size": 128, "is_direct": False}, measure="p50_us"),
    ]  # fmt: skip
    for key, size in SIZES.items():
        named = SIZE_NAMES[key]
        for subscribers in (1, 4):
            reach = 0.5 if key == "128" and subscribers == 1 else 0.0
            rows.append(
                Row(f"core_1_{subscribers}_{key}", f"core pub/sub, 1 -> {subscribers}, {named}",
                    "core", {"size": size, "subscribers": subscribers}, is_jetstream=False,
                    reach_lazy=reach)
            )  # fmt: skip
    rows += [
        Row("request_128", "core request/reply, one in flight", "request_reply", {"size": 128},
            measure="p50_us", is_jetstream=False),
        Row("request16_128", "core request/reply, 16 in flight", "request_reply",
            {"size": 128, "window": 16}, is_jetstream=False),
        Row("restart_1m", "restart after SIGKILL, 1 M messages of 128 B", "restart",
            {"count": 1_000_000, "size": 128}, measure="start_s"),
        Row("restart_5m", "restart after SIGKILL, 5 M messages of 128 B", "restart",
            {"count": 5_000_000, "size": 128}, measure="start_s"),
        Row("rss_load_5m", "memory under load, window 1000, 5 M messages of 128 B", "memory",
            {"count": 5_000_000, "size": 128, "window": 1000}, measure="rss_mb"),
        Row("rss_load_5m_subjects", "memory under load, 5 M messages of 128 B, 1,000 subjects",
            "memory", {"count": 5_000_000, "size": 128, "window": 1000, "subjects": 1000},
            measure="rss_mb"),
        Row("rss_load_1k", "memory under load, as many bytes in messages of 1 KiB", "memory",
            {"count": 625_000, "size": 1024, "window": 1000}, measure="rss_mb"),
        Row("idle_1000", "idle with 1,000 streams, CPU share", "idle",
            {"count": 1000, "seconds": 5.0}, measure="cpu_percent"),
    ]  # fmt: skip
    return rows


def _door_rows() -> list[Row]:
    """Publish, delivery and core messages by TLS, in WebSocket frames, in an account, and from one
    account to another. The rows without a door are what they are compared with."""
    rows: list[Row] = []
    doors = {"tls": "TLS", "ws": "WebSocket", "account": "in an account"}
    for door, named in doors.items():
        rows += [
            Row(f"{door}_pub_async_128", f"{named}: publish async, window 1000, 128 B", "publish",
                {"size": 128, "window": 1000}, door=door),
            Row(f"{door}_pub_sync_128", f"{named}: publish, one in flight, 128 B", "publish",
                {"size": 128, "window": 1}, measure="p50_us", door=door),
            Row(f"{door}_fetch_128", f"{named}: pull, fetch 500, explicit acks, 128 B", "fetch",
                {"size": 128}, fill=FILLS["128"], fill_size=128, door=door),
        ]  # fmt: skip
        for key in ("128", "16k"):
            rows.append(
                Row(f"{door}_core_1_1_{key}", f"{named}: core pub/sub, 1 -> 1, {SIZE_NAMES[key]}",
                    "core", {"size": SIZES[key], "subscribers": 1}, is_jetstream=False, door=door)
            )  # fmt: skip
    rows.append(
        Row("import_core_1_1_128", "core pub/sub into another account, 1 -> 1, 128 B", "core",
            {"size": 128, "subscribers": 1}, is_jetstream=False, door="import")
    )  # fmt: skip
    return rows


def _disk_rows() -> list[Row]:
    """Publish and replay of streams that are compressed, and of encrypted stores. The rows of the
    same size without are what they are compared with."""
    encrypted = '  key: "bench"\n  cipher: aes\n'
    return [
        Row("s2_pub_async_1k", "compressed: publish async, window 1000, 1 KiB", "publish",
            {"size": 1024, "window": 1000, "compression": "s2"}),
        Row("s2_ordered_1k", "compressed: ordered consumer, replay, 1 KiB", "push",
            {"size": 1024, "is_ordered": True}, fill=FILLS["1k"], fill_size=1024,
            compression="s2"),
        Row("aes_pub_async_1k", "encrypted: publish async, window 1000, 1 KiB", "publish",
            {"size": 1024, "window": 1000}, jetstream=encrypted),
        Row("aes_pub_sync_128", "encrypted: publish, one in flight, 128 B", "publish",
            {"size": 128, "window": 1}, measure="p50_us", jetstream=encrypted),
        Row("aes_ordered_1k", "encrypted: ordered consumer, replay, 1 KiB", "push",
            {"size": 1024, "is_ordered": True}, fill=FILLS["1k"], fill_size=1024,
            jetstream=encrypted),
    ]  # fmt: skip


def _feature_rows() -> list[Row]:
    """Copies of streams, counters, and publishing in fast batches."""
    return [
        Row("mirror_1m", "a mirror of 1 M messages of 128 B, until it has all", "mirror",
            {"size": 128}, fill=1_000_000, fill_size=128),
        Row("sources_10", "a stream of 10 sources, 50,000 messages of 128 B each, until it has all",
            "sources", {"size": 128, "origins": 10, "count": 50_000}),
        Row("counters_1000", "1,000 counters, window 1000", "count_up",
            {"counters": 1000, "window": 1000}),
        Row("fast_batch_128", "a fast batch, an ack every 500, 128 B", "fast_batch",
            {"size": 128, "flow": 500}),
    ]  # fmt: skip


def _replicated_rows() -> list[Row]:
    """Three servers. Ratios of times are peer/ours, so 0.6x the peer's time reads 1.67."""
    rows = [
        Row("r3_async_128", "R3: publish async, window 1000, 128 B", "publish",
            {"size": 128, "window": 1000}, reach_lazy=0.7, reach_always=1.5),
        Row("r3_async_1k", "R3: publish async, window 1000, 1 KiB", "publish",
            {"size": 1024, "window": 1000}),
        Row("r3_sync_128", "R3: publish, one in flight, 128 B", "publish",
            {"size": 128, "window": 1}, measure="p50_us", reach_always=1.67),
        Row("r3_sync16_128", "R3: publish, 16 connections, one in flight each, 128 B", "publish",
            {"size": 128, "window": 1, "connections": 16}),
        Row("r3_msg_get_128", "R3: get from the leader, last per subject, one in flight",
            "get_last", {"size": 128, "is_direct": False}, measure="p50_us"),
        Row("r3_fetch_128", "R3: pull, fetch 500, explicit acks, 128 B", "fetch",
            {"size": 128}, fill=200_000, fill_size=128, reach_always=1.0),
        Row("r3_failover", "R3: SIGKILL of the leader to the next ack", "failover",
            {"rounds": 3}, measure="failover_ms", reach_always=3.75),
        Row("r3_blackout", "R3: all three killed and started to the next ack", "blackout",
            fill=100_000, fill_size=128, measure="outage_s"),
        Row("r3_catchup_1m", "R3: wiped follower, 1 M messages of 128 B, whole again", "catch_up",
            fill=1_000_000, fill_size=128, measure="catch_up_s"),
        Row("r3_idle_5000", "R3: idle with 5,000 streams, CPU share of all three", "idle",
            {"count": 5000, "seconds": 10.0}, measure="cpu_percent"),
    ]  # fmt: skip
    return [replace(row, is_replicated=True) for row in rows]


ROWS = {
    row.name: row
    for row in (*_rows(), *_door_rows(), *_disk_rows(), *_feature_rows(), *_replicated_rows())
}
