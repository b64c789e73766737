"""Compression of leaf links: both ends agree as two real nats-servers do, and messages cross."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.leaf_bed import Ends, LeafPair, Sides, page, shown
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import Wire

pytestmark = pytest.mark.slow
# Modes of the hub and of its leaf node. No round trip takes an hour, not on a busy machine either.
MODES = [
    ("off", "s2_fast"),
    ("s2_fast", "off"),
    ("accept", "accept"),
    ("accept", "s2_best"),
    ("s2_better", "accept"),
    ("s2_fast", "s2_best"),
    ("{ mode: s2_auto, rtt_thresholds: [1h] }", "{ mode: s2_auto, rtt_thresholds: [1h] }"),
    ("{ mode: s2_auto, rtt_thresholds: [1h] }", "accept"),
    ("{ mode: s2_auto, rtt_thresholds: [0s, 0s, 1h] }", "s2_best"),
]
_SEEN: dict[tuple[str, str], list[str]] = {}


def modes_shown(kinds: str, modes: tuple[str, str], directory: Path) -> list[str]:
    """Join two servers, send what is easy and what is hard to compress, and return the modes that
    their monitoring shows."""
    binaries = {"ours": ours_binary(), "peer": peer_binary()}
    hub, _, leaf = kinds.partition("-")
    pair = LeafPair(
        (binaries[hub], binaries[leaf]),
        directory / kinds,
        Sides(),
        modes=modes,
    )
    dice = random.Random(7)
    words = [dice.randbytes(6) for _ in range(50)]
    text = b" ".join(dice.choice(words) for _ in range(60_000))
    payloads = [b"", b"x", b"a" * 300_000, dice.randbytes(200_000), text, *([b"small one"] * 500)]
    try:
        pair.start()
        for sender, receiver in ((pair.hub, pair.leaf), (pair.leaf, pair.hub)):
            with Wire(sender.port) as source, Wire(receiver.port) as target:
                ends = Ends(source, target)
                target.subscribe("data")
                ends.sync()
                for payload in payloads:
                    source.publish("data", payload, headers={"H": "1"}, reply="r")
                arrived = [frame[3] for frame in shown(ends.arrived())]
                assert arrived == sorted(payloads), (kinds, modes)
        return [page(server, "leafz")["leafs"][0]["compression"] for server in pair.servers]
    finally:
        pair.close()


@pytest.mark.parametrize("kinds", ["ours-peer", "peer-ours", "ours-ours"])
@pytest.mark.parametrize("modes", MODES)
def test_both_ends_agree(kinds: str, modes: tuple[str, str], tmp_path: Path) -> None:
    if not ours_binary() or not peer_binary():
        pytest.skip("no nats-server to join (STREAMD_PEER)")
    if modes not in _SEEN:
        _SEEN[modes] = modes_shown("peer-peer", modes, tmp_path)
    assert modes_shown(kinds, modes, tmp_path) == _SEEN[modes]
