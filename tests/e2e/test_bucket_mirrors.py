"""Mirrors of nats-py's buckets, of keys and of objects, while the node that leads one is killed."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from benchmarks.cluster import ClusterProcess
from tests.e2e.cluster import api
from tests.e2e.conftest import MakeCluster
from tests.e2e.test_stream_features import ATTEMPT_S, insist
from tests.waiting import until_told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WITHIN_S = 90.0
KEYS = 8
PUTS = 120


def mirror(cluster: ClusterProcess, name: str, origin: dict[str, Any], **limits: Any) -> None:
    config = {"name": name, "num_replicas": 3, "allow_direct": True, "mirror": origin, **limits}
    made = api(cluster, f"STREAM.CREATE.{name}", config)
    assert "error" not in made, made
    cluster.leader(name)


def test_mirrored_buckets_are_read_while_their_leader_is_killed(make_cluster: MakeCluster) -> None:
    """Keys by get, history and a watch that has gone on all the while; objects by their chunks,
    with the digest that they were stored with. Revisions are the origin's."""
    cluster = make_cluster()

    async def main() -> None:
        js = (await nats.connect(next(iter(cluster.nodes.values())).url)).jetstream()
        await js.create_key_value(KeyValueConfig(bucket="B", history=64, replicas=3, direct=True))
        await js.create_object_store("B", replicas=3)
        await js._nc.close()
        mirror(cluster, "KV_M", {"name": "KV_B"}, max_msgs_per_subject=64)
        transform = {"src": "$O.B.>", "dest": "$O.M.>"}
        mirror(cluster, "OBJ_M", {"name": "OBJ_B", "subject_transforms": [transform]})
        victim = cluster.leader("KV_M")
        others = [node.url for name, node in cluster.nodes.items() if name != victim]
        client = await nats.connect(others, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        try:
            await read_on(client.jetstream(timeout=ATTEMPT_S), victim)
        finally:
            await client.close()

    async def read_on(js: JetStreamContext, victim: str) -> None:
        keys, objects = await js.key_value("B"), await js.object_store("B")
        # A mirror has its origin's subjects, and is found by its own name.
        copied = KeyValue("B", "KV_M", "$KV.B.", js, direct=True)
        # By a subject nats-py finds no mirror, which listens on none.
        of_mirror = partial(js.subscribe, stream="OBJ_M")
        watcher = await copied.watchall()
        large = [os.urandom(300_000), os.urandom(300_000)]
        await insist(lambda: objects.put("first", large[0]))
        for number in range(PUTS):
            key, value = f"k{number % KEYS}", b"%d" % number
            await insist(lambda key=key, value=value: keys.put(key, value))
            if number == PUTS // 3:
                cluster.kill(victim)
            if number == 2 * PUTS // 3:
                cluster.nodes[victim].start()
        await insist(lambda: keys.delete("k0"))
        await insist(lambda: objects.put("second", large[1]))

        async def is_mirrored(name: str) -> bool:
            states = [
                (await insist(lambda one=one: js.stream_info(one))).state
                for one in (f"{name}_B", f"{name}_M")
            ]
            return bool(states[0].last_seq == states[1].last_seq)

        for name in ("KV", "OBJ"):
            await until_told(partial(is_mirrored, name), f"the mirror of {name}_B", WITHIN_S)
            for stream in (f"{name}_B", f"{name}_M"):  # any replica answers a direct get
                cluster.wait_until(partial(cluster.is_whole, stream), "whole", WITHIN_S)
        last = (await js.stream_info("KV_B")).state.last_seq
        seen = []
        while not seen or seen[-1].revision < last:
            update = await watcher.updates(timeout=WITHIN_S)
            if update is not None:  # None: what was there at first has come
                seen.append(update)
        await watcher.stop()
        wanted = []
        for number in range(KEYS):
            history = await keys.history(f"k{number}")
            assert [row(each) for each in await copied.history(f"k{number}")] == [
                row(each) for each in history
            ]
            wanted += [row(each) for each in history]
        assert [row(each) for each in seen] == sorted(wanted, key=lambda one: one[2])
        assert sorted(await copied.keys()) == [f"k{number}" for number in range(1, KEYS)]
        for number in range(1, KEYS):
            assert row(await copied.get(f"k{number}")) == row(await keys.get(f"k{number}"))
        js.subscribe = of_mirror  # type: ignore[method-assign]
        store = ObjectStore("M", "OBJ_M", js)
        assert [(await store.get(name)).data for name in ("first", "second")] == large

    asyncio.run(main())


def row(entry: KeyValue.Entry) -> tuple[str, bytes | None, int]:
    assert entry.revision is not None
    return entry.key, entry.value, entry.revision
