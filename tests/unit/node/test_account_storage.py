"""Storage of accounts: what each node knows of it, and what it leaves for the next publish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streamd.machine.meta import StreamAsset
from streamd.node.resources.account_storage import AccountStorage, ReplicaShare
from streamd.types import StorageLimit
from tests.unit.node.contexts import context_of


class _Links:
    def __init__(self) -> None:
        self.notes: list[tuple[str, str, list[Any]]] = []

    def nodes(self) -> list[str]:
        return ["b", "c"]

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.notes.append((node_id, kind, args))


class _Replica:
    """A stream that is here, and what it holds."""

    def __init__(self, storage: AccountStorage, asset: StreamAsset) -> None:
        self.machine: Any = SimpleNamespace(
            config=asset.config, index=SimpleNamespace(live=SimpleNamespace(bytes=0))
        )
        self.share: ReplicaShare = storage.share_of(asset, self.machine)

    def hold(self, byte_count: int, *, is_leading: bool = True) -> None:
        self.machine.index.live.bytes = byte_count
        self.share.update(is_leading=is_leading)


class _Bed:
    """Node "a" of three. Account A has one set of limits, T has tiers, F has none."""

    def __init__(self) -> None:
        limits: dict[tuple[Any, ...], tuple[int, bool]] = {
            ("A", True): (1000, False),
            ("A", False): (0, False),
            ("T", True, 1): (500, True),
            ("T", True, 3): (200, True),
        }

        def limit_of(account: str, is_file: bool, replicas: int) -> StorageLimit | None:
            found = limits.get((account, is_file, replicas)) or limits.get((account, is_file))
            return StorageLimit(*found) if found else None

        self.meta = SimpleNamespace(applied=1, streams_by_uid={})
        self.links = _Links()
        context = context_of(hooks=SimpleNamespace(storage_limit=limit_of))
        groups: Any = SimpleNamespace(meta=self.meta)
        links: Any = self.links
        self.storage = AccountStorage(context, groups, links)

    def asset(self, uid: int, account: str = "A", replicas: int = 1, storage: str = "file") -> Any:
        self.meta.applied += 1
        config = {"name": f"S{uid}", "account": account, "num_replicas": replicas}
        asset = self.meta.streams_by_uid[uid] = SimpleNamespace(
            uid=uid,
            account=account,
            is_file=storage == "file",
            config=config | {"storage": storage},
        )
        return asset

    def replica(self, *args: Any) -> _Replica:
        return _Replica(self.storage, self.asset(*args))

    def told(self) -> list[list[int]]:
        """Rows that the first of the other nodes was sent since this was last asked."""
        rows = [list(row) for node, _, rows in self.links.notes for row in rows if node == "b"]
        self.links.notes.clear()
        return rows


def test_streams_of_an_account_share_its_room() -> None:
    bed = _Bed()
    one, two, memory = bed.replica(1), bed.replica(2), bed.replica(3, "A", 1, "memory")
    one.hold(300)
    two.hold(100)
    assert one.share.room(1) == two.share.room(1) == 600
    assert memory.share.room(1) == 0  # a limit of none leaves none
    two.hold(0)
    assert one.share.room(1) == 700
    assert bed.replica(4, "F").share.room(1) is None
    assert bed.replica(5, "nobody's").share.room(1) is None


def test_each_replica_counts_but_in_a_tier_each_stream() -> None:
    bed = _Bed()
    flat, tiered, single = bed.replica(1, "A", 3), bed.replica(2, "T", 3), bed.replica(3, "T", 1)
    flat.hold(100)
    assert flat.share.room(1) == (1000 - 300) // 3
    tiered.hold(150)
    single.hold(400)
    assert tiered.share.room(1) == 50 and single.share.room(1) == 100


def test_entries_under_way_count_until_they_are_applied() -> None:
    bed = _Bed()
    one, two = bed.replica(1), bed.replica(2)
    one.share.hold(7, 600)
    assert two.share.room(1) == 400
    one.share.hold(8, 300)
    one.share.release(7)
    one.hold(600)
    assert two.share.room(1) == 100
    one.share.release_all()
    assert two.share.room(1) == 400
    one.share.release(8)  # applied later, of an earlier term
    assert two.share.room(1) == 400


def test_leaders_tell_what_their_streams_hold_when_it_changed() -> None:
    """Of accounts with limits only, and only of streams that are led here."""
    bed = _Bed()
    one, free, followed = bed.replica(1), bed.replica(2, "F"), bed.replica(3)
    one.hold(300)
    free.hold(300)
    followed.hold(300, is_leading=False)
    bed.storage.tell()
    assert bed.told() == [[1, 300]]
    bed.storage.tell()
    assert bed.told() == []
    one.hold(200)
    bed.storage.tell()
    assert bed.told() == [[1, 200]]
    bed.storage.tell_all()
    assert bed.told() == [[1, 200]]


def test_streams_elsewhere_count_by_what_was_told() -> None:
    bed = _Bed()
    here = bed.replica(1)
    bed.asset(2)
    bed.asset(3, "A", 3)
    bed.storage.on_note("b", [(2, 400), (3, 50), (9, 1000)])  # 9 is not known
    assert here.share.room(1) == 1000 - 400 - 150
    bed.storage.on_note("b", [(2, 100)])
    assert here.share.room(1) == 1000 - 100 - 150


def test_deleted_streams_elsewhere_are_not_counted_when_there_is_too_little_room() -> None:
    bed = _Bed()
    here = bed.replica(1)
    bed.asset(2)
    bed.storage.on_note("b", [(2, 900)])
    assert here.share.room(100) == 100
    del bed.meta.streams_by_uid[2]
    bed.meta.applied += 1
    assert here.share.room(101) == 1000


def test_a_replica_that_goes_leaves_what_its_leader_says() -> None:
    """What is applied here is newer than what was told, as long as it is here."""
    bed = _Bed()
    here, moving = bed.replica(1), bed.replica(2)
    moving.hold(300, is_leading=False)
    bed.storage.on_note("b", [(2, 500)])
    assert here.share.room(1) == 700
    bed.storage.forget(2)
    assert here.share.room(1) == 500
    bed.storage.forget(1)
    assert bed.replica(3).share.room(1) == 500


def test_another_number_of_replicas_counts_from_the_next_turn_on() -> None:
    bed = _Bed()
    one = bed.replica(1)
    one.hold(200)
    one.machine.config = one.machine.config | {"num_replicas": 3}
    one.hold(200)
    assert one.share.room(1) == (1000 - 600) // 3
