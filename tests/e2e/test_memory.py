"""Real process: resident memory hardly grows while messages are published, up to 2,000,000."""

from __future__ import annotations

import pytest

from benchmarks.generator import generate
from tests.e2e.conftest import Start

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
WARM = 500_000  # caches and buffers are what they will be
COUNT = 1_500_000
GROWTH_MB_MAX = 20.0  # of 24 bytes a message, as the index has them, it would be 36
HIGHEST_MB = 150.0


@pytest.mark.parametrize("subjects", [1, 1000])
def test_memory_does_not_grow_with_the_messages_published(
    make_server: Start, binary: str, subjects: int
) -> None:
    if "nats-server" in binary:
        pytest.skip("the bound is streamd's own")
    server = make_server()
    server.start()
    args = {"size": 128, "window": 1000, "subjects": subjects}
    generate(server.port, "fill", {"count": WARM, **args})
    before_mb, _ = server.memory_mb()
    generate(server.port, "fill", {"count": COUNT, **args})
    after_mb, peak_mb = server.memory_mb()
    print(f"{subjects} subjects: {before_mb:.0f} MiB, then {after_mb:.0f}, at most {peak_mb:.0f}")
    assert after_mb - before_mb < GROWTH_MB_MAX
    assert peak_mb < HIGHEST_MB
