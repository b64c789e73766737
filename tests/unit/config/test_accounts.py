"""Accounts, mappings and users of accounts: from configuration text to options, and mistakes.

Side by side with a real server: `tests/parity/test_accounts_configuration.py`.
"""

from __future__ import annotations

import pytest

from streamd.config import account_checks, grammar, reader
from streamd.config.account_options import (
    CHUNKED,
    AccountJetStream,
    AccountLimits,
    ExportOptions,
    ImportOptions,
    JetStreamTier,
    LatencyOptions,
    MappingDestination,
    SubjectMapping,
    TraceOptions,
)
from streamd.config.options import Options, finish
from streamd.errors import ConfigError

USER = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
ACCOUNT = "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU"


def options(text: str) -> Options:
    return finish(reader.from_tree(grammar.parse(text, "t.conf", environ={})))


def test_there_are_always_the_main_and_the_system_account() -> None:
    """Also without a configuration; with others the main one loses JetStream, as nats-server's."""
    for o in (Options(), options("port: 1"), options("accounts { $SYS {} }")):
        assert o.accounts.keys() == {"$G", "$SYS"}
        assert o.system_account == "$SYS"
        assert o.accounts["$G"].jetstream == AccountJetStream()
        assert o.accounts["$SYS"].jetstream is None
    o = options("accounts { A {} }")
    assert o.accounts.keys() == {"$G", "A", "$SYS"}
    assert o.accounts["$G"].jetstream is None
    o = options("accounts { A {} }, system_account: A")
    assert (o.accounts.keys(), o.system_account) == ({"$G", "A"}, "A")
    assert o.accounts["$G"].jetstream == AccountJetStream()


def test_names_alone_make_accounts() -> None:
    assert options("accounts: [A, B]").accounts.keys() == {"$G", "A", "B", "$SYS"}


def test_an_account_is_read_whole() -> None:
    o = options(
        f"""
        accounts {{
          A {{
            nkey: {ACCOUNT}
            limits {{ max_connections: 5, max_subs: 6, max_payload: 7, max_leafs: 8 }}
            jetstream {{ mem: 1K, disk: 2K, streams: 3, consumers: 4, max_bytes: true,
              mem_max_stream_bytes: 5, store_max_stream_bytes: 6, max_ack_pending: 7,
              cluster_traffic: owner }}
            msg_trace {{ dest: t.t, sampling: "20%" }}
            mappings {{ "a.*": b.$1, c: [{{dest: d, weight: 40}}, {{dest: e, weight: "30%", cluster: x}}] }}
            default_permissions {{ publish: p }}
            users: [ {{user: u, password: p}}, {{nkey: {USER}, permissions: {{subscribe: s}}}} ]
          }}
        }}
        """  # noqa: E501
    )
    a = o.accounts["A"]
    assert a.nkey == ACCOUNT
    assert a.limits == AccountLimits(5, 8, 6, 7)
    assert a.jetstream == AccountJetStream(
        JetStreamTier(1000, 2000, 3, 4, 7, 5, 6, True), cluster_traffic="owner"
    )
    assert a.trace == TraceOptions("t.t", 20)
    assert a.mappings == (
        SubjectMapping("a.*", (MappingDestination("b.$1"),)),
        SubjectMapping("c", (MappingDestination("d", 40), MappingDestination("e", 30, "x"))),
    )
    assert a.default_permissions is not None
    plain, with_key = o.users
    assert (plain.name, plain.account, plain.identity) == ("u", "A", "u")
    assert plain.permissions == a.default_permissions
    assert (with_key.name, with_key.nkey, with_key.identity) == ("", USER, USER)
    assert with_key.permissions is not None and with_key.permissions.subscribe_allow == [b"s"]


def test_top_level_mappings_are_the_main_accounts() -> None:
    o = options("mappings { a: b }, maps { c: d }, accounts { A {} }")
    assert [m.source for m in o.accounts["$G"].mappings] == ["a", "c"]
    assert o.accounts["A"].mappings == ()


def test_exports_and_imports_are_read_whole() -> None:
    o = options(
        """
        accounts {
          A { exports: [
            { stream: "s.>", accounts: [B] }
            { stream: "p.*", account_token_position: 2 }
            { service: q, response: chunked, threshold: "3s", allow_trace: true }
            { service: r, latency: { subject: l, sampling: headers } }
          ] }
          B { imports: [
            { stream: {account: A, subject: "s.a"}, prefix: in, allow_trace: true }
            { stream: {account: A, subject: "s.*"}, to: "t.$1" }
            { stream: {account: A, subject: "p.B"} }
            { service: {account: A, subject: q}, to: ask, share: true }
          ] }
        }
        """
    )
    assert o.accounts["A"].exports == (
        ExportOptions("s.>", False, ("B",)),
        ExportOptions("p.*", False, account_token_position=2),
        ExportOptions("q", True, (), CHUNKED, 3_000_000_000, allows_trace=True),
        ExportOptions("r", True, latency=LatencyOptions("l", 0)),
    )
    assert o.accounts["B"].imports == (
        ImportOptions("A", "s.a", False, "in.s.a", allows_trace=True),
        ImportOptions("A", "s.*", False, "t.$1"),
        ImportOptions("A", "p.B", False),
        ImportOptions("A", "q", True, "ask", is_shared=True),
    )


def test_exports_of_one_subject_become_one() -> None:
    """The later adds importers; of a service it keeps the response type."""
    o = options(
        "accounts { B {}, C {}, A { exports: ["
        " {stream: s, accounts: [B]}, {stream: s, accounts: [C]},"
        " {service: q, response: stream}, {service: q, accounts: [C]} ] } }"
    )
    stream, service = o.accounts["A"].exports
    assert stream.accounts == ("B", "C")
    assert (service.accounts, service.response_type) == (("C",), "stream")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("accounts { A { nkey: x } }", "1:16: Not a valid public nkey for an account: "),
        ("accounts { $G {} }", '1:12: "$G" is a Reserved Account'),
        ("accounts: 5", '"accounts" must be a block'),
        ('accounts { "" {} }', "an account needs a name"),
        ("accounts { A { limits { max_conn: 5000000000 } } }", "out of range: up to 2147483647"),
        (
            "accounts { A { imports: [{stream: {account: B, subject: s}}] } }",
            '1:1: "B" account not',
        ),
        (
            "accounts { A { exports: [{stream: s}, {service: x, latency: l}] } }\n"
            "no_system_account: true",
            'latency sampling for "x": system account not setup',
        ),
        ("mappings { a: [{dest: b, weight: 60}, {dest: c, weight: 60}] }", "total weight needs"),
        (
            "accounts { A { exports: [{stream: s, service: q}] } }",
            'Detected service "q" but already saw a stream',
        ),
        (
            "accounts { A { imports: [{stream: {account: A, subject: s}, prefix: p, to: t}] } }",
            "Stream import can not have a 'prefix' and a 'to' property",
        ),
        (
            "authorization { user: a, password: b }\naccounts { A { users: [{user: x}] } }",
            "2:16: Can not have a single user/pass and accounts",
        ),
        (
            "accounts { A { users: [{user: x}] } }\nauthorization { token: t }",
            "1:16: Can not have a token and accounts",
        ),
        (
            "authorization { users: [{user: x}] }\naccounts { A { users: [{user: x}] } }",
            '2:16: Duplicate user "x" detected',
        ),
        ("system_account: A", "error resolving system account: account missing"),
        (
            "jetstream {}, accounts { $SYS { jetstream: on } }",
            "Not allowed to enable JetStream on the system account",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, wanted: str) -> None:
    """Those that nats-server refuses by chance, or whose text is another there."""
    with pytest.raises(ConfigError) as told:
        options(text)
    assert wanted in str(told.value)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("accounts { A { exports: [{accounts: [A]}] } }", "neither a stream nor a service"),
        ("accounts { A { imports: [{to: x}] } }", "neither a stream nor a service"),
        (
            "accounts { A { exports: [{stream: s}],"
            " imports: [{stream: {account: A, subject: s}, share: true}] } }",
            "no effect on a stream",
        ),
        (
            "accounts { A { exports: [{service: s}],"
            " imports: [{service: {account: A, subject: s}, prefix: x}] } }",
            "no effect on a service",
        ),
        (
            "accounts { A { exports: [{service: s, latency: {subject: l, foo: 1}}] } }",
            '"exports.latency.foo" has no meaning',
        ),
        ("accounts { A { msg_trace: {sampling: 5} } }", "sampling ignored since no destination"),
        ("no_system_account: true", '"no_system_account" is not served'),
        ("authorization { timeout: 61 }", "timeout of 61 (61.000000 seconds) is high"),
    ],
)
def test_settings_without_effect_are_told_of(text: str, warning: str) -> None:
    """nats-server passes most of them over."""
    (told,) = options(text).warnings
    assert warning in told


def chain(length: int, closing: str) -> str:
    """A0 imports from A1, which imports from A2, and so on; the last one exports."""
    parts = [
        f"A{n} {{ exports: [{{{closing}: s}}],"
        f" imports: [{{{closing}: {{account: A{n + 1}, subject: s}}}}] }}"
        for n in reversed(range(length))
    ]
    return f"accounts {{ A{length} {{ exports: [{{{closing}: s}}] }}\n" + "\n".join(parts) + "}"


@pytest.mark.parametrize("kind", ["stream", "service"])
def test_chains_of_imports_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one is followed, a longer one refused, a circle found."""
    monkeypatch.setattr(account_checks, "IMPORT_CHAIN_ACCOUNTS_MAX", 20)
    assert len(options(chain(19, kind)).accounts) == 22
    with pytest.raises(ConfigError, match="search cycle depth exhausted"):
        options(chain(20, kind))
    circle = (
        f"A3 {{ exports: [{{{kind}: s}}], imports: [{{{kind}: {{account: A0, subject: s}}}}] }}"
    )
    text = chain(3, kind).replace(f"A3 {{ exports: [{{{kind}: s}}] }}", circle)
    with pytest.raises(ConfigError, match="import forms a cycle"):
        options(text)


def test_two_ways_to_one_exporter_are_no_cycle() -> None:
    o = options(
        "accounts { D { exports: [{service: s}] },"
        " B { exports: [{service: b}], imports: [{service: {account: D, subject: s}, to: b}] },"
        " C { exports: [{service: c}], imports: [{service: {account: D, subject: s}, to: c}] },"
        " A { imports: [{service: {account: B, subject: b}}, {service: {account: C, subject: c}}] }"
        " }"
    )
    assert len(o.accounts["A"].imports) == 2


def test_a_bound_on_what_an_account_stores_is_taken_without_a_warning() -> None:
    o = options("accounts { A { jetstream { max_store: 1G, max_mem: -1 } } }")
    jetstream = o.accounts["A"].jetstream
    assert jetstream is not None and jetstream.limits.max_storage == 10**9 and not o.warnings
