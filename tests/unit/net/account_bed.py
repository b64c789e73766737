"""Accounts with a router each and clients on fake transports, linked as their options say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from streamd.config.account_options import (
    AccountOptions,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    SubjectMapping,
)
from streamd.config.options import Options
from streamd.net.accounts.account_links import AccountLinks
from streamd.net.accounts.request_info import ServerFacts
from streamd.net.client.client_registry import ClientRegistry
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.output_queue import OutputQueue
from tests.unit.net.bed import CONNECT, Bed, Clock, Peer, make_listener

SYSTEM = "$SYS"


def stream(subject: str, *accounts: str) -> ExportOptions:
    return ExportOptions(subject, is_service=False, accounts=accounts)


def service(
    subject: str,
    *accounts: str,
    response: str = "singleton",
    threshold_ms: int = 0,
    latency: LatencyOptions | None = None,
    position: int = 0,
) -> ExportOptions:
    return ExportOptions(
        subject,
        is_service=True,
        accounts=accounts,
        response_type=response,
        response_threshold_ns=threshold_ms * 1_000_000,
        latency=latency,
        account_token_position=position,
    )


def takes(account: str, subject: str, to: str = "") -> ImportOptions:
    return ImportOptions(account, subject, is_service=False, local_subject=to)


def asks(account: str, subject: str, to: str = "", *, is_shared: bool = False) -> ImportOptions:
    return ImportOptions(account, subject, is_service=True, local_subject=to, is_shared=is_shared)


def mapping(source: str, *destinations: str) -> SubjectMapping:
    share = 100 // len(destinations)
    return SubjectMapping(source, tuple(MappingDestination(to, share) for to in destinations))


def account(
    name: str,
    *rules: ExportOptions | ImportOptions | SubjectMapping,
) -> AccountOptions:
    return AccountOptions(
        name,
        exports=tuple(each for each in rules if isinstance(each, ExportOptions)),
        imports=tuple(each for each in rules if isinstance(each, ImportOptions)),
        mappings=tuple(each for each in rules if isinstance(each, SubjectMapping)),
    )


class Space(Bed):
    """One account: a bed whose clock and output queue are those of the server."""

    def __init__(self, options: AccountOptions, clock: Clock, queue: OutputQueue) -> None:
        self.name = options.name
        self.account_options = options
        self.clock = clock
        self.router = MessageRouter(output_queue=queue)
        self.subscriptions = self.router.subscriptions
        self.router.fanout._dice = 1
        self.registry = ClientRegistry(100)
        self.listener = make_listener(Options(), self.router, self.registry)

    def client(self, *subjects: bytes, connect: bytes = CONNECT) -> Peer:
        """A client with subscriptions, whose sids count from 1."""
        peer = self.peer(connect)
        subs = [b"SUB %b %d\r\n" % (each, at + 1) for at, each in enumerate(subjects)]
        peer.send(b"".join(subs))
        return peer


class Linked:
    """A `links.Linkable` for a space."""

    def __init__(self, space: Space) -> None:
        self.name = space.name
        self.options = space.account_options
        self.router = space.router


class AccountBed:
    def __init__(self, *options: AccountOptions, has_system: bool = False) -> None:
        self.clock = Clock()
        self.queue = OutputQueue(self.clock.time)
        self.links = AccountLinks(
            SYSTEM,
            server=ServerFacts("bed", ""),
            monotonic_ns=lambda: int(self.clock.now * 1e9),
            wall_ns=lambda: 1_700_000_000_000_000_000 + int(self.clock.now * 1e9),
            call_later=self.clock.call_later,
            random_below=random.Random(1).randrange,
            has_system_services=has_system,
        )
        self.spaces: dict[str, Space] = {}
        self.refused: list[str] = []
        self.apply(*options)

    def apply(self, *options: AccountOptions) -> None:
        """Have these accounts: those that stay keep their clients."""
        spaces: dict[str, Space] = {}
        for each in options:
            space = self.spaces.get(each.name) or Space(each, self.clock, self.queue)
            space.account_options = each
            spaces[each.name] = space
        self.spaces = spaces
        self.refused = self.links.apply(self._linked())

    def _linked(self) -> dict[str, Linked]:
        return {name: Linked(space) for name, space in self.spaces.items()}

    def change_alone(self, *options: AccountOptions, gone: tuple[str, ...] = ()) -> None:
        """Change or add these accounts, take out those that are `gone`; look at no others."""
        for each in options:
            if each.name not in self.spaces:
                self.spaces[each.name] = Space(each, self.clock, self.queue)
            self.spaces[each.name].account_options = each
        for name in gone:
            del self.spaces[name]
        names = {*(each.name for each in options), *gone}
        self.refused = self.links.change(self._linked(), names)

    def change(self, name: str, change: Callable[[AccountOptions], AccountOptions]) -> None:
        options = [space.account_options for space in self.spaces.values()]
        self.apply(*(change(each) if each.name == name else each for each in options))

    def __getitem__(self, name: str) -> Space:
        return self.spaces[name]


def without_imports(options: AccountOptions) -> AccountOptions:
    return replace(options, imports=())
