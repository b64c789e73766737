"""Isolation of accounts: a message reaches whom exports and imports let it reach, each once, and
nobody else. Random accounts, imports, subscribers and publishers against a model of a few lines."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from streamd.config.account_options import AccountOptions, ExportOptions, ImportOptions
from streamd.subjects import matches
from tests.unit.net.account_bed import AccountBed, account
from tests.unit.net.bed import Peer

CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
TOKENS = (b"a", b"b", b"c")
MESSAGE = re.compile(rb"MSG (\S+) (\d+) (?:\S+ )?\d+\r\n(\d+)\r\n")
Rename = Callable[[bytes], bytes]


class Join(NamedTuple):
    """An import of the model."""

    importer: str
    exporter: str
    is_service: bool
    remote: bytes
    local: bytes  # pattern
    there: Rename  # local subject -> remote one
    here: Rename  # remote subject -> local one


class Sub(NamedTuple):
    """A subscription of the model."""

    account: str
    peer: Peer
    pattern: bytes
    queue: bytes
    sid: bytes


class Receipt(NamedTuple):
    peer: int
    sid: bytes
    subject: bytes
    payload: bytes


def swapped(subject: bytes) -> bytes:
    first, second, third = subject.split(b".")
    return b".".join((first, third, second))


class World:
    """Accounts with clients, and what the model says about them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = [f"ACC{at}" for at in range(self.chance.randrange(2, 6))]
        self.joins: list[Join] = []
        self.bed = AccountBed(*self.options())
        self.peers = {
            name: [self.bed[name].client(connect=CONNECT) for _ in range(2)] for name in self.names
        }
        self.subs: list[Sub] = []
        self.sids = 0
        self.payloads = 0
        self.delivered = 0

    # --- accounts -------------------------------------------------------------------------------

    def options(self) -> list[AccountOptions]:
        """Choose exports and imports anew; the model's joins follow."""
        exports = {name: self.exports() for name in self.names}
        self.joins = []
        imports: dict[str, list[ImportOptions]] = {name: [] for name in self.names}
        for name in self.names:
            for _ in range(self.chance.randrange(8)):
                exporter = self.chance.choice(self.names)
                if exporter == name or not exports[exporter]:
                    continue
                export = self.chance.choice(exports[exporter])
                made, join = self.imported(name, exporter, export)
                if made in imports[name]:
                    continue
                imports[name].append(made)
                if not export.accounts or name in export.accounts:
                    self.joins.append(join)
        return [account(name, *exports[name], *imports[name]) for name in self.names]

    def exports(self) -> list[ExportOptions]:
        patterns = ("a.>", "b.*", "a.*.*", "c.*.*", "c.a.b", "b.c")
        chosen = self.chance.choices(patterns, k=self.chance.randrange(6))
        allowed = tuple(self.chance.sample(self.names, 1)) if self.chance.random() < 0.2 else ()
        return [
            ExportOptions(pattern, is_service=self.chance.random() < 0.4, accounts=allowed)
            for pattern in dict.fromkeys(chosen)
        ]

    def imported(
        self, importer: str, exporter: str, export: ExportOptions
    ) -> tuple[ImportOptions, Join]:
        remote = export.subject
        local, there, here = remote, bytes, bytes
        kind = self.chance.randrange(3)
        if kind == 1:  # a prefix
            prefix = self.chance.choice(TOKENS)
            local = f"{prefix.decode()}.{remote}"
            there = lambda subject: subject.split(b".", 1)[1]  # noqa: E731
            here = lambda subject: prefix + b"." + subject  # noqa: E731
        elif kind == 2 and remote.endswith("*.*"):
            local = f"{remote[0]}.$2.$1"
            there = here = swapped
        made = ImportOptions(exporter, remote, is_service=export.is_service, local_subject=local)
        pattern = re.sub(r"\$\d", "*", local).encode()
        join = Join(importer, exporter, export.is_service, remote.encode(), pattern, there, here)
        return made, join

    # --- clients --------------------------------------------------------------------------------

    def subject(self) -> bytes:
        return b".".join(self.chance.choices(TOKENS, k=self.chance.randrange(1, 5)))

    def subscribe(self) -> None:
        tokens = self.chance.choices((*TOKENS, b"*"), k=self.chance.randrange(1, 4))
        if self.chance.random() < 0.3:
            tokens.append(b">")
        self.sids += 1
        name = self.chance.choice(self.names)
        queue = self.chance.choice((b"", b"", b"q1", b"q2"))
        peer = self.chance.choice(self.peers[name])
        sub = Sub(name, peer, b".".join(tokens), queue, b"%d" % self.sids)
        self.subs.append(sub)
        middle = b"%b %b" % (sub.pattern, queue) if queue else sub.pattern
        sub.peer.send(b"SUB %b %b\r\n" % (middle, sub.sid))

    def unsubscribe(self) -> None:
        if self.subs:
            sub = self.subs.pop(self.chance.randrange(len(self.subs)))
            sub.peer.send(b"UNSUB %b\r\n" % sub.sid)

    def reload(self) -> None:
        self.bed.apply(*self.options())

    # --- the model ------------------------------------------------------------------------------

    def spaces(
        self, name: str, subject: bytes, seen: tuple[Join, ...] = ()
    ) -> Iterator[tuple[str, bytes, bool]]:
        """Yield (account, subject, whether by a request) of each place where a publish arrives."""
        yield name, subject, bool(seen)
        for join in self.joins:
            if join.is_service and join.importer == name and matches(join.local, subject):
                if join not in seen:
                    yield from self.spaces(join.exporter, join.there(subject), (*seen, join))

    def wanted(
        self, name: str, subject: bytes, payload: bytes
    ) -> tuple[list[Receipt], list[list[Receipt]]]:
        """Return the receipts that must come, and groups of which one must come each."""
        plain: list[Receipt] = []
        groups: list[list[Receipt]] = []
        for place, there, is_request in self.spaces(name, subject):
            names = [(place, there)]
            if not is_request:
                names += [
                    (join.importer, join.here(there))
                    for join in self.joins
                    if not join.is_service and join.exporter == place
                    if matches(join.remote, there)
                ]
            members: dict[bytes, list[Receipt]] = {}
            for where, local in names:
                for sub in self.subs:
                    if sub.account == where and matches(sub.pattern, local):
                        receipt = Receipt(id(sub.peer), sub.sid, local, payload)
                        (members.setdefault(sub.queue, []) if sub.queue else plain).append(receipt)
            groups += members.values()
        return plain, groups

    # --- one publish after another --------------------------------------------------------------

    def publish(self, count: int) -> None:
        name = self.chance.choice(self.names)
        subject = self.subject()
        wanted: Counter[Receipt] = Counter()
        groups: list[list[Receipt]] = []
        chunk: list[bytes] = []
        for _ in range(count):
            if self.chance.random() < 0.3:
                subject = self.subject()
            self.payloads += 1
            payload = b"%d" % self.payloads
            chunk.append(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
            plain, more = self.wanted(name, subject, payload)
            wanted.update(plain)
            groups += more
        publisher = self.chance.choice(self.peers[name])
        got = self.receipts(publisher, publisher.send(b"".join(chunk)))
        self.delivered += got.total()
        assert not wanted - got, (name, subject, wanted - got)
        left = got - wanted
        assert is_shared_out(left, sorted(groups, key=len)), (name, subject, left, groups)

    def receipts(self, publisher: Peer, its: bytes) -> Counter[Receipt]:
        found: Counter[Receipt] = Counter()
        for peers in self.peers.values():
            for peer in peers:
                data = its if peer is publisher else peer.take()
                end = 0
                for each in MESSAGE.finditer(data):
                    assert each.start() == end, data
                    end = each.end()
                    found[Receipt(id(peer), each[2], each[1], each[3])] += 1
                assert end == len(data), data
        return found


def is_shared_out(receipts: Counter[Receipt], groups: list[list[Receipt]]) -> bool:
    """Return True if `receipts` are one of each group, and no others."""
    if not groups:
        return not receipts
    for each in groups[0]:
        if receipts[each] and is_shared_out(receipts - Counter([each]), groups[1:]):
            return True
    return False


def run(seeds: Iterator[int], delivery_count: int) -> int:
    """Run worlds until so many messages were delivered, each checked; return how many."""
    delivered = 0
    while delivered < delivery_count:
        world = World(next(seeds))
        for _ in range(12):
            world.subscribe()
        for _ in range(30):
            what = world.chance.random()
            if what < 0.15:
                world.subscribe()
            elif what < 0.28:
                world.unsubscribe()
            elif what < 0.34:
                world.reload()
            else:
                world.publish(world.chance.randrange(1, 6))
        delivered += world.delivered
    return delivered


def test_deliveries_are_those_of_the_model() -> None:
    assert run(iter(range(10_000)), 20_000) >= 20_000


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_million_deliveries_are_those_of_the_model() -> None:
    assert run(iter(range(1_000_000, 2_000_000)), 1_000_000) >= 1_000_000
