"""`streamctl backup` at three nodes: increments, damage that is found, earlier moments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.ctl.conftest import Ctl

pytestmark = pytest.mark.slow


def fill(ctl: Ctl, stream: str, count: int, size: int = 20_000) -> None:
    """Publish bodies that do not compress."""
    for at in range(count):
        body = os.urandom(size)
        assert (
            ctl("pub", f"{stream}.{at % 4}", "--no-templates", "--stream", stdin=body).status == 0
        )


def sizes(place: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in place.glob("segments/*/*")}


def test_backups_grow_by_what_is_new_and_restore_as_it_was(ctl: Ctl, tmp_path: Path) -> None:
    """Two backups, with deletions and a consumer between; the first and the second come back."""
    place = tmp_path / "backups"
    assert ctl("stream", "add", "BK", "--subject", "BK.>", "--replicas", "3").status == 0
    ctl("pub", "BK.0", "{{Count}}", "--count", "2000", "--stream")
    made = ctl("backup", "create", str(place), "BK", "-o", "json")
    assert made.status == 0, made.err
    assert (made.data["messages"], made.data["streams"]) == (2000, ["BK"])
    first = made.data["id"]

    ctl("consumer", "add", "BK", "worker", "--ack", "explicit")
    ctl("consumer", "next", "BK", "worker", "--count", "3", "--ack")
    ctl("stream", "purge", "BK", "--keep", "1990", "--yes")
    ctl("pub", "BK.1", "later {{Count}}", "--count", "500", "--stream")
    second = ctl("backup", "create", str(place), "BK", "-o", "json")
    assert second.status == 0, second.err
    assert second.data["messages"] == 2490

    listed = ctl("backup", "list", str(place), "-o", "json").data
    assert [row["id"] for row in listed] == [first, second.data["id"]]
    for name in (first, second.data["id"]):
        checked = ctl("backup", "verify", str(place), "--id", name, "-o", "json")
        assert checked.status == 0 and checked.data[0]["fault"] == ""

    taken = ctl("backup", "restore", str(place), "BK")
    assert taken.status == 1 and "10130" in taken.err
    before = ctl("stream", "info", "BK", "-o", "json").data["state"]
    ctl("stream", "delete", "BK", "--yes")
    back = ctl("backup", "restore", str(place), "BK", "-o", "json")
    assert back.status == 0, back.err
    assert back.data == [{"stream": "BK", "messages": 2490, "last_seq": 2500, "consumers": 1}]
    after = ctl("stream", "info", "BK", "-o", "json").data["state"]
    assert after == before
    worker = ctl("consumer", "info", "BK", "worker", "-o", "json").data
    assert worker["ack_floor"]["stream_seq"] >= 3 and worker["num_pending"] == 2490

    words = ("--id", first, "--as", "COPY", "--subject", "copy.>", "--replicas", "1")
    copied = ctl("backup", "restore", str(place), "BK", *words, "--until-seq", "700")
    assert copied.status == 0, copied.err
    state = ctl("stream", "info", "COPY", "-o", "json").data["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (700, 1, 700)
    moment = ctl("stream", "get", "BK", "2000", "-o", "json").data["time"]
    ctl("stream", "delete", "COPY", "--yes")
    cut = ctl("backup", "restore", str(place), "BK", "--as", "COPY", "--subject", "copy.>",
              "--until-time", moment)  # fmt: skip
    assert cut.status == 0, cut.err
    state = ctl("stream", "info", "COPY", "-o", "json").data["state"]
    assert (state["messages"], state["last_seq"]) == (1990, 2000)
    for name in ("BK", "COPY"):
        ctl("stream", "delete", name, "--yes")


def test_only_what_is_new_is_written_and_damage_is_found(ctl: Ctl, tmp_path: Path) -> None:
    """Segments of before stay as they are; a missing and a changed one are named by verify."""
    place = tmp_path / "grown"
    ctl("stream", "add", "GROW", "--subject", "GROW.>", "--replicas", "1")
    fill(ctl, "GROW", 60, 100_000)
    assert ctl("backup", "create", str(place), "GROW").status == 0
    before = sizes(place)
    fill(ctl, "GROW", 3, 100_000)
    assert ctl("backup", "create", str(place), "GROW").status == 0
    after = sizes(place)
    new = {name: size for name, size in after.items() if name not in before}
    assert before.items() <= after.items() and len(new) == 1
    assert sum(new.values()) < sum(before.values()) / 2

    assert ctl("backup", "verify", str(place)).status == 0
    victim = next(path for path in place.glob("segments/*/*") if path.name in before
                  and path.stat().st_size == max(before.values()))  # fmt: skip
    body = bytearray(victim.read_bytes())
    body[1000] ^= 1
    victim.write_bytes(body)
    found = ctl("backup", "verify", str(place), "-o", "json")
    assert found.status == 1 and "its checksum is another" in found.data[0]["fault"]
    refused = ctl("backup", "restore", str(place), "GROW", "--as", "BROKEN", "--subject", "b.>")
    assert refused.status == 1 and "checksum" in refused.err
    victim.unlink()
    assert ctl("backup", "verify", str(place)).status == 1
    names = ctl("stream", "list", "--names").out.split()
    assert "BROKEN" not in names
    ctl("stream", "delete", "GROW", "--yes")


def test_a_tar_holds_one_backup_of_all_streams(ctl: Ctl, tmp_path: Path) -> None:
    """Written once: an existing file stays as it is."""
    place = tmp_path / "all.tar"
    for name in ("TA", "TB"):
        ctl("stream", "add", name, "--subject", f"{name}.>", "--replicas", "1")
        ctl("pub", f"{name}.x", "body", "--count", "5", "--stream")
    made = ctl("backup", "create", str(place), "TA", "TB")
    assert made.status == 0, made.err
    assert ctl("backup", "create", str(place), "TA").status == 1
    shown = ctl("backup", "show", str(place), "-o", "json").data
    assert [row["stream"] for row in shown] == ["TA", "TB"]
    assert ctl("backup", "verify", str(place)).status == 0
    for name in ("TA", "TB"):
        ctl("stream", "delete", name, "--yes")
    back = ctl("backup", "restore", str(place), "-o", "json")
    assert [row["messages"] for row in back.data] == [5, 5], back.err
    two = ctl("backup", "restore", str(place), "--as", "X")
    assert two.status == 2 and "one stream" in two.err
    nothing = ctl("backup", "list", str(tmp_path))
    assert nothing.status == 1 and "there are no backups" in nothing.err
    for name in ("TA", "TB"):
        ctl("stream", "delete", name, "--yes")
