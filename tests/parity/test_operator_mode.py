"""Operator mode, side by side: each server is asked the same, and says, logs and does the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.minted_tokens import operator_config
from tests.parity.login_bed import Servers, both, logged, outcome
from tests.parity.test_operator_logins import ACCOUNTS, CASES


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with both(tmp_path_factory.mktemp("operators"), operator_config(*ACCOUNTS.items())) as pair:
        yield pair


@pytest.mark.parametrize("case", CASES)
def test_a_login_comes_to_the_same(case: str, servers: Servers) -> None:
    """What the client is told, about itself too, and what the log says of it."""
    before = {id(server): server.log_file.stat().st_size for server in servers.all}
    told = servers.compare(lambda server: _once(outcome(server, CASES[case])))
    if "Authorization Violation" in str(told):
        servers.compare(lambda server: logged(server, before[id(server)]))


def _once(told: list[Any]) -> list[Any]:
    """Return what was told without repetitions in lists, which templates of the real server make,
    and without the last digits of what is left of a login."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return sorted(set(value)) if isinstance(value, list) else value

    found = [plain(each) for each in told]
    for each in found:
        if isinstance(each, dict) and "expires" in each:
            each["expires"] = round(each["expires"] / 1e10)
    return found
