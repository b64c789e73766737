"""Memory that many share: who grew longest ago gives up first."""

from __future__ import annotations

from streamd.memory_share import MemoryShare


class Holder:
    def __init__(self, share: MemoryShare, *, keeps: int = 0) -> None:
        self.share = share
        self.keeps = keeps
        self.size = 0
        self.gave_up = 0

    def grow(self, size: int) -> None:
        self.size += size
        self.share.note(self, self.size)

    def give_up(self) -> int:
        self.gave_up += 1
        self.size, self.keeps = self.keeps, 0
        return self.size


def test_the_holder_that_grew_longest_ago_gives_up_first() -> None:
    share = MemoryShare(100)
    first, second, third = Holder(share), Holder(share), Holder(share)
    first.grow(40)
    second.grow(40)
    first.grow(10)
    third.grow(40)
    assert (first.size, second.size, third.size) == (50, 0, 40)
    assert share.used == 90


def test_as_many_give_up_as_must() -> None:
    share = MemoryShare(100)
    holders = [Holder(share) for _ in range(10)]
    for holder in holders:
        holder.grow(10)
    large = Holder(share)
    large.grow(75)
    assert [holder.gave_up for holder in holders] == [1] * 8 + [0] * 2
    assert share.used == 95


def test_a_growing_holder_keeps_all_it_has() -> None:
    share = MemoryShare(100)
    holder, other = Holder(share), Holder(share)
    other.grow(1)
    holder.grow(1000)
    assert (holder.gave_up, other.gave_up) == (0, 1)
    assert share.used == 1000
    share.forget(holder)
    assert share.used == 0


def test_a_holder_that_keeps_a_bit_is_asked_again() -> None:
    share = MemoryShare(100)
    holders = [Holder(share, keeps=10) for _ in range(9)]
    for holder in holders:
        holder.grow(20)
        assert share.used <= 100
    assert share.used == sum(holder.size for holder in holders)
    last = Holder(share)
    last.grow(100)
    assert [holder.size for holder in holders] == [0] * 9
    assert (last.gave_up, share.used) == (0, 100)
