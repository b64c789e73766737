"""Options of accounts: what each may use, and what it shares with others.

A configuration file gives them (`accounts_reader.py`), or, where operators are trusted, the claims
of signed account tokens. Subjects are patterns of the NATS protocol, times are ns, sizes are bytes;
a limit of -1 means that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from streamd.config.user_options import Permissions
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT

SINGLETON: Final = "singleton"
"""Response type of a service that answers each request once; the default."""
STREAMED: Final = "stream"
"""Response type of a service that answers with many messages, until none came for a while."""
CHUNKED: Final = "chunked"
"""Response type of a service that answers in parts, the last of them empty."""


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Measurement of a service: which share of its requests is reported, and where to."""

    subject: str
    sampling: int = 100  # per cent; 0: the requests whose headers ask for it


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Subjects that an account lets others use: a stream to receive, or a service to ask."""

    subject: str
    is_service: bool
    accounts: tuple[str, ...] = ()  # that may import it; empty: any
    response_type: str = SINGLETON
    response_threshold_ns: int = 0  # a streamed answer ends after this much silence; 0: two minutes
    latency: LatencyOptions | None = None
    account_token_position: int = 0  # of the token that must be the importer's name; 0: none
    allows_trace: bool = False
    is_token_required: bool = False  # importers show an activation token
    revocations: Mapping[str, int] = field(default_factory=dict)  # account or "*": unix seconds


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Subjects of another account, as this one uses them."""

    account: str  # the exporter
    subject: str  # there
    is_service: bool
    local_subject: str = ""  # here, with `$1` or `*` for wildcards; "": as there
    is_shared: bool = False  # the service learns who asks
    allows_trace: bool = False
    expires_ns: int = 0  # of its activation token, unix time; 0: never


@dataclass(frozen=True, slots=True)
class MappingDestination:
    """Destination of a mapped subject: what it becomes, and in how many of a hundred cases."""

    subject: str  # with mapping functions, such as `{{partition(3,1)}}`
    weight: int = 100  # per cent
    cluster: str = ""  # "": at servers of any cluster


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """A rule by which publishes to a subject go to others instead."""

    source: str
    destinations: tuple[MappingDestination, ...]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Messages of an account that say by `traceparent` that they are traced."""

    destination: str
    sampling: int = 100  # per cent


@dataclass(frozen=True, slots=True)
class AccountLimits:
    max_connections: int = -1  # over the whole cluster
    max_leafnodes: int = -1
    max_subscriptions: int = -1  # per connection
    max_payload: int = -1
    max_imports: int = -1
    max_exports: int = -1
    allows_wildcard_exports: bool = True
    allows_bearer: bool = True


@dataclass(frozen=True, slots=True)
class JetStreamTier:
    """Limits of an account's streams, of all of them or of those with one number of replicas."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False


@dataclass(frozen=True, slots=True)
class AccountJetStream:
    """JetStream of an account that has it: one set of limits, or tiers (`R1`, `R3`)."""

    limits: JetStreamTier = JetStreamTier()
    tiers: Mapping[str, JetStreamTier] = field(default_factory=dict)
    cluster_traffic: str = ""  # "system", "owner"; accepted, and without effect


@dataclass(frozen=True, slots=True)
class AccountOptions:
    """Account as configured. Its users are in `Options.users`, or carry tokens of their own."""

    name: str  # with operators the account's public key
    nkey: str = ""
    exports: tuple[ExportOptions, ...] = ()
    imports: tuple[ImportOptions, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    limits: AccountLimits = AccountLimits()
    jetstream: AccountJetStream | None = None  # None: it has none
    default_permissions: Permissions | None = None
    trace: TraceOptions | None = None
    # Of an account token:
    label: str = ""  # a name for people
    tags: tuple[str, ...] = ()
    token: str = ""
    issuer: str = ""
    expires_ns: int = 0  # unix time; 0: never
    revocations: Mapping[str, int] = field(default_factory=dict)  # user key or "*": unix seconds


def default_accounts() -> dict[str, AccountOptions]:
    """Return the accounts of a server that is configured with none: `$G`, which has JetStream, and
    the system account."""
    return {
        ACCOUNT: AccountOptions(ACCOUNT, jetstream=AccountJetStream()),
        SYSTEM_ACCOUNT: AccountOptions(SYSTEM_ACCOUNT),
    }
