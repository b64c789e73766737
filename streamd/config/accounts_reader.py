"""Reader of accounts: `accounts`, `mappings`, `system_account`. Error texts are nats-server's.

The keys may come in any order, so that accounts are put together in `finish`, once all are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from streamd import subject_mapping
from streamd.config.account_checks import AccountError, Exchange
from streamd.config.account_options import (
    AccountJetStream,
    AccountLimits,
    AccountOptions,
    ExportOptions,
    JetStreamTier,
    MappingDestination,
    SubjectMapping,
    TraceOptions,
)
from streamd.config.exchange_reader import ReadImport, as_percentage, read_exports, read_imports
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, put_in
from streamd.config.options import Options
from streamd.config.users_reader import UsersReader
from streamd.config.values import (
    as_flag,
    as_integer,
    as_members,
    as_text,
    go_type,
    quoted,
    shown,
)
from streamd.subjects import is_valid, is_valid_literal
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT

_INT32_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class _Account:
    """An account as it is read: what it shares is not checked yet."""

    options: AccountOptions
    exports: list[ExportOptions]
    imports: list[ReadImport]


class AccountsReader:
    """Reads accounts into `Options`, their users by way of the `UsersReader`."""

    def __init__(self, options: Options, blocks: KeyBlocks, users: UsersReader) -> None:
        self._options = options
        self._blocks = blocks
        self._users = users
        self._accounts: dict[str, _Account] = {}
        self._block: Value | None = None  # `accounts`
        self._mappings: dict[str, SubjectMapping] = {}  # of $G
        self._system: str | None = None

    # --- setters ------------------------------------------------------------------------------

    def accounts(self, block: Value) -> None:
        """Read all accounts: a block of them, or a list of names."""
        self._block = block
        if isinstance(block.raw, list):
            for entry in block.raw:
                name = as_text(entry)
                self._check_name(name, entry)
                if name in self._accounts:
                    raise entry.error(f"Duplicate Account Entry: {name}")
                self._accounts[name] = _Account(AccountOptions(name), [], [])
            return
        for name, account in as_members(block, "accounts").items():
            if account.is_referred_to:
                continue
            if not isinstance(account.raw, dict):
                raise account.error("Expected map entries for accounts")
            self._check_name(name, account)
            self._accounts[name] = self._account(name, account)

    def mappings(self, value: Value) -> None:
        """Read mappings of `$G`."""
        self._mappings |= {m.source: m for m in self._read_mappings(value)}

    def system_account(self, value: Value) -> None:
        """Read the name of the system account."""
        if not isinstance(value.raw, str):
            raise value.error("system account name must be a string")
        self._system = value.raw

    def no_system_account(self, value: Value) -> None:
        """Read whether there is to be no system account."""
        self._options.has_system_account = not as_flag(value)
        if not self._options.has_system_account:
            self._blocks.warn(value, f'"{value.key}" is not served by this version and is ignored')

    def finish(self) -> None:
        """Check the accounts against each other and put them into the options, with `$G` and the
        system account. Raises ConfigError."""
        o = self._options
        exchange = Exchange(self._accounts, has_system_account=o.has_system_account)
        try:
            for name, account in self._accounts.items():
                for export in sorted(account.exports, key=lambda e: e.is_service):
                    exchange.add_export(name, export)
            shared: dict[str, list[Any]] = {name: [] for name in self._accounts}
            for is_service in (False, True):
                for name, account in self._accounts.items():
                    for read in account.imports:
                        if read.options.is_service == is_service:
                            shared[name].append(exchange.add_import(name, read))
        except AccountError as err:
            assert self._block is not None
            raise self._block.error(str(err)) from err
        found = {
            name: replace(
                account.options, exports=exchange.exports(name), imports=tuple(shared[name])
            )
            for name, account in self._accounts.items()
        }
        named = self._system or o.operators.system_account
        o.system_account = named or SYSTEM_ACCOUNT
        is_alone = not found.keys() - {ACCOUNT, o.system_account}
        main = AccountOptions(
            ACCOUNT,
            mappings=tuple(self._mappings.values()),
            jetstream=AccountJetStream() if is_alone else None,
        )
        if not self._system or o.operators.has_trusted_keys:  # of the latter its token is looked up
            found.setdefault(o.system_account, AccountOptions(o.system_account))
        o.accounts = {ACCOUNT: main, **found}
        o.configured_accounts = (*self._accounts, *([ACCOUNT] if self._mappings else []))

    def is_configured(self, name: str) -> bool:
        """Return True if the configuration has this account itself."""
        return name in self._accounts or (name == ACCOUNT and bool(self._mappings))

    @property
    def is_system_alone(self) -> bool:
        """True if the system account is configured, and no other besides `$G`."""
        return self._accounts.keys() == {self._system or SYSTEM_ACCOUNT}

    # --- one account --------------------------------------------------------------------------

    def _check_name(self, name: str, place: Value) -> None:
        if name == ACCOUNT:
            raise place.error(f"{quoted(name)} is a Reserved Account")
        if not name:
            raise place.error("an account needs a name")

    def _account(self, name: str, block: Value) -> _Account:
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)
        mappings: dict[str, SubjectMapping] = {}
        exports: list[ExportOptions] = []
        imports: list[ReadImport] = []
        users: list[Value] = []
        self._blocks.read(
            block,
            {
                "nkey": put("nkey", _nkey),
                "imports": lambda v: imports.extend(read_imports(v, self._blocks)),
                "exports": lambda v: exports.extend(read_exports(v, self._blocks)),
                "jetstream": put("jetstream", self._jetstream),
                "users": users.append,
                "default_permissions": put("default_permissions", self._users.permissions),
                "mappings|maps": lambda v: mappings.update(
                    {m.source: m for m in self._read_mappings(v)}
                ),
                "limits": put("limits", self._limits),
                "msg_trace|trace_dest": put("trace", self._trace),
            },
            f"accounts.{name}.",
        )
        options = AccountOptions(name, mappings=tuple(mappings.values()), **settings)
        for value in users:
            self._users.of_account(value, options)
        return _Account(options, exports, imports)

    def _limits(self, block: Value) -> AccountLimits:
        if not isinstance(block.raw, dict):
            raise block.error(f"Expected account limits to be a map/struct, got {shown(block)}")
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)

        def limit(value: Value) -> int:
            number = as_integer(value)
            if number > _INT32_MAX:
                raise value.error(f'"{value.key}": {number} is out of range: up to {_INT32_MAX}')
            return number

        self._blocks.read(
            block,
            {
                "max_connections|max_conn": put("max_connections", limit),
                "max_subscriptions|max_subs": put("max_subscriptions", limit),
                "max_payload|max_pay": put("max_payload", limit),
                "max_leafnodes|max_leafs": put("max_leafnodes", limit),
            },
            "limits.",
            unknown="Unknown field {} parsing account limits",
        )
        return AccountLimits(**settings)

    # --- JetStream ----------------------------------------------------------------------------

    def _jetstream(self, value: Value) -> AccountJetStream | None:
        if isinstance(value.raw, bool):
            return AccountJetStream() if value.raw else None
        if isinstance(value.raw, str):
            if value.raw.lower() in ("enabled", "enable"):
                return AccountJetStream()
            if value.raw.lower() in ("disabled", "disable"):
                return None
            raise value.error(
                f"Expected 'enabled' or 'disabled' for string value, got '{value.raw}'"
            )
        if not isinstance(value.raw, dict):
            raise value.error(
                f"Expected map, bool or string to define JetStream, got {go_type(value)}"
            )
        limits: dict[str, Any] = {}
        traffic: dict[str, Any] = {}
        put = partial(put_in, limits)
        self._blocks.read(
            value,
            {
                "max_memory|max_mem|mem|memory": put("max_memory", _size),
                "max_store|max_file|max_disk|store|disk": put("max_storage", _size),
                "max_streams|streams": put("max_streams", _size),
                "max_consumers|consumers": put("max_consumers", _size),
                "max_bytes_required|max_stream_bytes|max_bytes": put(
                    "max_bytes_required", _is_required
                ),
                "mem_max_stream_bytes|memory_max_stream_bytes": put(
                    "memory_max_stream_bytes", _size
                ),
                "disk_max_stream_bytes|store_max_stream_bytes": put(
                    "storage_max_stream_bytes", _size
                ),
                "max_ack_pending": put("max_ack_pending", _size),
                "cluster_traffic": put_in(traffic, "cluster_traffic", _cluster_traffic),
            },
            "jetstream.",
        )
        return AccountJetStream(JetStreamTier(**limits), **traffic)

    # --- traces -------------------------------------------------------------------------------

    def _trace(self, value: Value) -> TraceOptions | None:
        key = value.key.rpartition(".")[2]
        if isinstance(value.raw, str):
            return TraceOptions(_trace_destination(value, key))
        if not isinstance(value.raw, dict):
            raise value.error(
                f"Expected account message trace {quoted(key)} to be a string or a map/struct,"
                f" got {go_type(value)}"
            )
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)
        self._blocks.read(
            value,
            {
                "dest": put("destination", lambda v: _trace_destination(v, "dest")),
                "sampling": put("sampling", _trace_sampling),
            },
            f"{key}.",
            unknown=f"Unknown field {{}} parsing account message trace map/struct {quoted(key)}",
        )
        if "destination" in settings:
            return TraceOptions(**settings)
        if settings:
            self._blocks.warn(
                value, "Trace destination sampling ignored since no destination was set"
            )
        return None

    # --- mappings -----------------------------------------------------------------------------

    def _read_mappings(self, value: Value) -> list[SubjectMapping]:
        found = []
        for source, written in as_members(value, value.key or "mappings").items():
            if not is_valid(source.encode()):
                raise value.error(f"Subject {quoted(source)} is not a valid subject")
            told = f"Error adding mapping for {quoted(source)}"
            if isinstance(written.raw, str):
                told += f" to {quoted(written.raw)}"
                destinations = [MappingDestination(written.raw)]
            elif isinstance(written.raw, list):
                destinations = [self._destination(entry) for entry in written.raw]
            else:
                destinations = [self._destination(written)]
            mapping = SubjectMapping(source, tuple(destinations))
            try:
                subject_mapping.check_mapping(mapping)
            except ValueError as err:
                raise written.error(f"{told} : {err}") from None
            found.append(mapping)
        return found

    def _destination(self, entry: Value) -> MappingDestination:
        if not isinstance(entry.raw, dict):
            raise entry.error("Expected an entry for the mapping destination")
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)
        self._blocks.read(
            entry,
            {
                "dest|destination": put("subject", as_text),
                "weight": put("weight", _weight),
                "cluster": put("cluster", as_text),
            },
            "mappings.",
            unknown="Unknown field {} for mapping destination",
        )
        subject = settings.setdefault("subject", "")
        if "weight" not in settings:
            raise entry.error(f"Missing weight for mapping destination {quoted(subject)}")
        return MappingDestination(**settings)


# --- values ---------------------------------------------------------------------------------------


def _nkey(value: Value) -> str:
    if not isinstance(value.raw, str) or not is_valid_public(KeyKind.ACCOUNT, value.raw):
        got = quoted(value.raw) if isinstance(value.raw, str) else shown(value)
        raise value.error(f"Not a valid public nkey for an account: {got}")
    return value.raw


def _size(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int):
        name = quoted(value.key.rpartition(".")[2])
        raise value.error(f"Expected a parseable size for {name}, got {shown(value)}")
    return as_integer(value)


def _is_required(value: Value) -> bool:
    if not isinstance(value.raw, bool):
        name = quoted(value.key.rpartition(".")[2])
        raise value.error(f"Expected a parseable bool for {name}, got {shown(value)}")
    return value.raw


def _cluster_traffic(value: Value) -> str:
    name = quoted(value.key.rpartition(".")[2])
    if not isinstance(value.raw, str):
        raise value.error(
            f"Expected either 'system' or 'owner' string value for {name}, got {shown(value)}"
        )
    if value.raw not in ("system", "owner", ""):
        raise value.error(f"Expected 'system' or 'owner' string value for {name}, got {value.raw}")
    return value.raw


def _trace_destination(value: Value, key: str) -> str:
    if not isinstance(value.raw, str):
        raise value.error(f"Field {quoted(key)} should be a string, got {go_type(value)}")
    if not is_valid_literal(value.raw.encode()):
        raise value.error(f"Trace destination {quoted(value.raw)} is not valid")
    return value.raw


def _trace_sampling(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | str):
        raise value.error(
            'Trace destination sampling field "sampling" should be an integer or a percentage,'
            f" got {go_type(value)}"
        )
    sampling = value.raw if isinstance(value.raw, int) else as_percentage(value.raw)
    if sampling is None:
        raise value.error(f"Invalid trace destination sampling value {quoted(str(value.raw))}")
    if not 1 <= sampling <= 100:
        raise value.error(  # the misspelling is nats-server's
            f"Ttrace destination sampling value {sampling} is invalid, needs to be [1..100]"
        )
    return sampling


def _weight(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | str):
        raise value.error(f"Unknown entry type for weight of {shown(value)}")
    weight = value.raw if isinstance(value.raw, int) else as_percentage(value.raw)
    if weight is None:
        told = quoted(str(value.raw).removesuffix("%"))
        raise value.error(f"Invalid weight {told} for mapping destination")
    if not 0 <= weight <= 100:
        raise value.error(f"Invalid weight {weight} for mapping destination")
    return weight
