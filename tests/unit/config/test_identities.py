"""Operators, resolvers and auth callout: from configuration text to options, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.config import grammar, reader
from streamd.config.callout_options import CalloutOptions
from streamd.config.operator_options import DeletedTokens, ResolverKind, ResolverOptions
from streamd.config.options import Options, finish
from streamd.errors import ConfigError
from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair

USER = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
ACCOUNT = "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU"
OPERATOR = "OCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYOCS"
CURVE = "XCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYX6Z"
SIGNER = KeyPair(KeyKind.OPERATOR, bytes([1]) * 32)
OTHER = KeyPair(KeyKind.OPERATOR, bytes([2]) * 32)
SYSTEM = KeyPair(KeyKind.ACCOUNT, bytes([3]) * 32)


def operator(key: KeyPair = SIGNER, **nats: object) -> str:
    claims = {"sub": key.public, "nats": {"type": "operator", **nats}}
    return encode(claims, key, issued_s=1)


def user(**nats: object) -> str:
    public = KeyPair(KeyKind.USER, bytes([5]) * 32).public
    return encode({"sub": public, "nats": {"type": "user", **nats}}, SYSTEM, issued_s=1)


TOKEN = operator()
ACCOUNT_TOKEN = encode({"sub": SYSTEM.public, "nats": {"type": "account"}}, SIGNER, issued_s=1)
BEARER = user(bearer_token=True)
OPERATORS = f"operator: {TOKEN}, resolver: MEM"


def options(text: str) -> Options:
    return finish(reader.from_tree(grammar.parse(text, "t.conf", environ={})))


def test_operators_are_tokens_or_files_with_one(tmp_path: Path) -> None:
    """A file may wrap its token between lines of dashes, as tools write it."""
    plain, decorated = tmp_path / "plain.jwt", tmp_path / "decorated.jwt"
    plain.write_text(TOKEN + "\n")
    decorated.write_text(
        f"-----BEGIN NATS OPERATOR JWT-----\n{TOKEN}\n------END NATS OPERATOR JWT------\n"
    )
    for value in (TOKEN, f'"{plain}"', f'"{decorated}"', f'["{plain}"]'):
        o = options(f"operator: {value}, resolver: MEM")
        assert o.operators.tokens == (TOKEN,)
        assert o.operators.claims[0].registered.subject == SIGNER.public
        assert o.is_auth_required
    assert not options("operator: []").is_auth_required


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("MEM", ResolverOptions(ResolverKind.MEMORY)),
        ("memory", ResolverOptions(ResolverKind.MEMORY)),
        ('"URL(http://h:1/jwt)"', ResolverOptions(ResolverKind.URL, url="http://h:1/jwt/")),
        ("{ type: mem }", ResolverOptions(ResolverKind.MEMORY)),
        (
            "{ type: full, dir: d, allow_delete: true, limit: 5, interval: '2s', timeout: '3s' }",
            ResolverOptions(
                ResolverKind.FULL,
                "",
                "d",
                DeletedTokens.RENAMED,
                5,
                2_000_000_000,
                0,
                3_000_000_000,
            ),
        ),
        (
            "{ type: Full, dir: d, allow_delete: true, hard_delete: true }",
            ResolverOptions(ResolverKind.FULL, directory="d", deleted=DeletedTokens.REMOVED),
        ),
        (
            "{ type: cache, dir: d, ttl: '1m' }",
            ResolverOptions(ResolverKind.CACHE, directory="d", ttl_ns=60_000_000_000),
        ),
    ],
)
def test_resolvers_are_read(text: str, wanted: ResolverOptions) -> None:
    assert options(f"trusted: {OPERATOR}, resolver: {text}").operators.resolver == wanted


def test_a_directory_is_compared_every_minute_and_asks_for_two_seconds() -> None:
    """Unless it is told otherwise."""
    for kind in ("full", "cache"):
        resolver = options(f"trusted: {OPERATOR}, resolver: {{type: {kind}, dir: d}}").operators
        assert resolver.resolver is not None
        assert (resolver.resolver.interval_ns, resolver.resolver.timeout_ns) == (
            60_000_000_000,
            1_900_000_000,
        )


def test_what_goes_with_operators_is_read() -> None:
    o = options(
        f"{OPERATORS}, resolver_preload {{ {SYSTEM.public}: {ACCOUNT_TOKEN} }},"
        f" default_sentinel: {BEARER}, resolver_pinned_accounts: [{ACCOUNT}], resolver_tls {{ }},"
        f" system_account: {SYSTEM.public}"
    )
    assert o.operators.preload == {SYSTEM.public: ACCOUNT_TOKEN}
    assert o.operators.pinned_accounts == {ACCOUNT}
    assert o.operators.default_sentinel == BEARER
    assert o.operators.resolver_tls is not None
    assert o.accounts.keys() == {"$G", SYSTEM.public}
    assert options(f"trusted_keys: {OPERATOR}").operators.trusted_keys == (OPERATOR,)


def test_the_only_operator_names_resolver_and_system_account() -> None:
    """Where the configuration does not; of two operators neither."""
    told = operator(system_account=SYSTEM.public, account_server_url="https://h/jwt")
    o = options(f"operator: {told}")
    assert o.operators.resolver == ResolverOptions(ResolverKind.URL, url="https://h/jwt/accounts/")
    assert o.system_account == SYSTEM.public
    o = options(f'operator: ["{told}", "{operator(OTHER)}"], resolver: MEM')
    assert o.system_account == "$SYS"
    assert o.warnings == ["Trusted Operators should utilize a System Account"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            f'operator: ["{TOKEN}", "{operator(OTHER)}"]',
            "operators require an account resolver to be configured",
        ),
        (f"operator: {TOKEN}", 'could not fetch <"/accounts/">: Get "/accounts/": unsupported'),
        (OPERATORS + ", accounts { A {} }", "operators do not allow Accounts to be configured"),
        (
            OPERATORS + ", authorization { users: [{user: u}] }",
            "operators do not allow users to be configured directly",
        ),
        (
            f"{OPERATORS}, authorization {{ auth_callout {{issuer: {ACCOUNT}, users: [u]}} }}",
            "operators do not allow authorization callouts to be configured directly",
        ),
        (OPERATORS + ", no_auth_user: u", "no_auth_user not compatible with Trusted Operator"),
        (
            f"{OPERATORS}, trusted_keys: {OPERATOR}",
            "conflicting options for 'TrustedKeys' and 'TrustedOperators'",
        ),
        (
            OPERATORS + ", resolver_pinned_accounts: x",
            'pinned account key "x" is not a valid public account nkey',
        ),
        (OPERATORS + ", mappings { a: b }", "operators do not allow Accounts to be configured"),
        (f"{OPERATORS}, system_account: X", "will only fetch valid account keys"),
        (f"{OPERATORS}, system_account: {ACCOUNT}", "system account: account missing"),
        (f"trusted: {OPERATOR}, system_account: X", "system account: account missing"),
        (
            f"operator: {operator(system_account=SYSTEM.public)}, resolver: MEM,"
            f" system_account: {ACCOUNT}",
            "system_account in config and operator JWT must be identical",
        ),
        (
            f"operator: {operator(assert_server_version='2.99.0')}, resolver: MEM",
            f"operator {SIGNER.public} expected minor version 99 > server minor version",
        ),
        (
            f"operator: {operator(assert_server_version='x')}, resolver: MEM",
            "expects version x got error instead: asserted server version must be of the form",
        ),
        (
            f"operator: {operator(signing_keys=['x'])}, resolver: MEM",
            'trusted Keys "x" are required to be a valid public operator nkey',
        ),
        (
            f"operator: {TOKEN}, resolver: {{type: full, dir: d}}",
            "using nats based account resolver - the system account needs to be specified in",
        ),
        (f"operator: {ACCOUNT_TOKEN}", "1:1: error parsing operator JWT: not operator claim"),
        (f"{OPERATORS}, default_sentinel: x", "default sentinel JWT not valid"),
        (f"{OPERATORS}, default_sentinel: {user()}", "default sentinel must be a bearer token"),
        (f"resolver_preload {{ A: {BEARER} }}", "invalid account JWT"),
        ("default_sentinel: x", "default sentinel requires operators and accounts"),
        (
            f"operator: {TOKEN}, resolver: 'URL(http://h/)',"
            f" resolver_preload {{ A: {ACCOUNT_TOKEN} }}",
            "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR",
        ),
        ("resolver: {type: full, dir: d}", "Could not start resolver: no operator key found"),
        ("resolver: {type: full}", "1:1: dir has no value and needs to point to a directory"),
        ("resolver: {type: full, dir: /etc/passwd}", "dir needs to point to an accessible"),
        ("operator: [5 ]", "error parsing operators: unsupported type int64"),
        (
            "authorization { auth_callout { issuer: 5 } }",
            '"authorization.auth_callout.issuer" must',
        ),
    ],
)
def test_mistakes_are_told(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as told:
        options(text)
    assert wanted in str(told.value)


def test_a_callout_is_read() -> None:
    o = options(
        f"accounts {{ AUTH {{}}, A {{}} }}, authorization {{ auth_hook {{ issuer: {ACCOUNT},"
        f" auth_users: [a, {USER}], acc: AUTH, key: {CURVE}, allowed_accounts: [A] }} }}"
    )
    assert o.callout == CalloutOptions(ACCOUNT, ("a", USER), "AUTH", CURVE, ("A",))
    assert o.is_auth_required


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("auth_callout", f"authorization {{ auth_callout {{issuer: {ACCOUNT}, users: [u]}} }}"),
        ("operator", OPERATORS),
        ("trusted_keys", f"trusted: {OPERATOR}"),
        ("resolver", "resolver: MEM"),
        ("default_sentinel", f"{OPERATORS}, default_sentinel: {BEARER}"),
    ],
)
def test_each_part_is_served(part: str, text: str) -> None:
    assert options(text).unserved == [], part
