"""Two transcripts of one scenario, compared field by field."""

from __future__ import annotations

from typing import Any, NamedTuple

Steps = list[tuple[str, Any]]
MISSING = "<absent>"


class Difference(NamedTuple):
    """One field that differs. `path` names the step and the way into its answer."""

    scenario: str
    step: int
    label: str
    path: str
    ours: Any
    peer: Any

    def __str__(self) -> str:
        return (
            f"{self.scenario} #{self.step} {self.label[:120]} {self.path or '(all)'}:\n"
            f"    ours {self.ours!r}\n    peer {self.peer!r}"
        )


def differences(scenario: str, ours: Steps, peer: Steps) -> list[Difference]:
    """Every field in which the transcripts differ; order of keys does not count."""
    found: list[Difference] = []
    for number in range(max(len(ours), len(peer))):
        one = ours[number] if number < len(ours) else (MISSING, MISSING)
        other = peer[number] if number < len(peer) else (MISSING, MISSING)
        label = other[0] if other[0] != MISSING else one[0]
        _compare(scenario, number, label, "", one[1], other[1], found)
    return found


def _compare(
    scenario: str, step: int, label: str, path: str, ours: Any, peer: Any, found: list[Difference]
) -> None:
    if isinstance(ours, dict) and isinstance(peer, dict):
        for key in sorted({*ours, *peer}):
            deeper = f"{path}.{key}" if path else str(key)
            _compare(
                scenario, step, label, deeper, ours.get(key, MISSING), peer.get(key, MISSING), found
            )
    elif isinstance(ours, list) and isinstance(peer, list):
        for at in range(max(len(ours), len(peer))):
            one = ours[at] if at < len(ours) else MISSING
            other = peer[at] if at < len(peer) else MISSING
            _compare(scenario, step, label, f"{path}[{at}]", one, other, found)
    elif ours != peer or type(ours) is not type(peer):
        found.append(Difference(scenario, step, label, path, ours, peer))
