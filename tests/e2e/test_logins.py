"""Logins with keys and tokens, through nats-py."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest
from nats.errors import Error

from benchmarks.servers import ServerProcess
from tests.e2e.conftest import Run
from tests.minted_tokens import REVOKED_USER, USER
from tests.parity.runner import ours_binary

pytestmark = pytest.mark.slow


def test_a_client_logs_in_with_the_seed_of_a_key(run: Run, tmp_path: Path) -> None:
    """It signs the nonce of each of its connections; another key is not let in."""
    config = f"authorization {{ users: [{{nkey: {USER.public}}}] }}\n"

    async def body(server: ServerProcess) -> None:
        connection = await nats.connect(server.url, nkeys_seed_str=USER.seed)
        subscription = await connection.subscribe("a")
        await connection.publish("a", b"x")
        assert (await subscription.next_msg(timeout=30)).data == b"x"
        await connection.close()
        with pytest.raises(Error):
            await nats.connect(server.url, nkeys_seed_str=REVOKED_USER.seed, allow_reconnect=False)

    with ServerProcess(ours_binary(), directory=tmp_path, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait_for_log("Server is ready")
        run(body(one))
