"""Claims of accounts as options: what is taken over, and which imports the exporter lets be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
from streamd.durations import SECOND_NS
from streamd.tokens.account_claims import AccountConversion, account_options
from streamd.tokens.claims import AccountClaims, decode_account, decode_operator
from streamd.tokens.validation import Trust
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OPERATOR,
    OTHER_ACCOUNT,
    SYSTEM,
    UNLIMITED,
    account,
    mint,
    operator,
)

NOW_S = 1_800_000_000
TRUST = Trust.of([decode_operator(operator())])
B = OTHER_ACCOUNT.public


def _convert(token: str, *exporters: str) -> AccountConversion:
    claims = [decode_account(each) for each in exporters]
    known: dict[str, AccountClaims] = {each.registered.subject: each for each in claims}
    return account_options(decode_account(token), token, known.get, TRUST, now_s=NOW_S)


def test_an_account_is_taken_over_whole() -> None:
    token = account(
        name="Label",
        tags=["a:b"],
        exp=NOW_S + 5,
        now_s=NOW_S,
        limits={**UNLIMITED, "conn": 5, "subs": 6, "payload": 7, "leaf": 8, "imports": 9,
                "exports": 10, "wildcards": False, "disallow_bearer": True, "mem_storage": 11},
        exports=[
            {"subject": "s.*", "type": "service", "response_type": "Chunked", "token_req": True,
             "response_threshold": 12, "account_token_position": 2, "allow_trace": True,
             "service_latency": {"sampling": "headers", "results": "r"}, "revocations": {"*": 13}},
            {"subject": "t", "type": "stream"},
        ],
        mappings={"m": [{"subject": "n", "cluster": "c", "weight": 40}, {"subject": "o"}]},
        default_permissions={"pub": {"allow": ["p"]}},
        trace={"dest": "d"},
        revocations={"*": 14},
    )  # fmt: skip
    found = _convert(token)
    options = found.options
    assert not found.problems
    assert (options.name, options.nkey, options.label) == (ACCOUNT.public, ACCOUNT.public, "Label")
    assert (options.tags, options.token, options.issuer) == (("a:b",), token, OPERATOR.public)
    assert options.expires_ns == (NOW_S + 5) * SECOND_NS
    assert options.revocations == {"*": 14}
    assert options.limits == AccountLimits(5, 8, 6, 7, 9, 10, False, False)
    assert options.exports == (
        ExportOptions(
            "s.*", True, (), CHUNKED, 12, LatencyOptions("r", 0), 2, True, True, {"*": 13}
        ),
        ExportOptions("t", False),
    )
    assert options.mappings == (
        SubjectMapping("m", (MappingDestination("n", 40, "c"), MappingDestination("o", 100))),
    )
    assert options.default_permissions is not None
    assert options.default_permissions.publish_allow == [b"p"]
    assert options.trace == TraceOptions("d", 100)
    assert options.jetstream == AccountJetStream(
        JetStreamTier(max_memory=11, max_storage=0, max_streams=0, max_consumers=0)
    )


def test_an_account_without_limits_may_do_nothing() -> None:
    options = _convert(account(limits={})).options
    assert options.limits == AccountLimits(0, 0, 0, 0, 0, 0, False, True)
    assert options.jetstream is None


def test_jetstream_is_there_with_memory_or_disk() -> None:
    """Storage of 0 is none, of -1 any; other limits of 0 are none where they limit a stream."""
    assert _convert(account(limits={**UNLIMITED, "streams": -1})).options.jetstream is None
    limits = {**UNLIMITED, "disk_storage": -1, "streams": -1, "consumer": 5, "max_ack_pending": 6}
    jetstream = _convert(account(limits=limits)).options.jetstream
    assert jetstream == AccountJetStream(
        JetStreamTier(0, -1, -1, 5, 6, memory_max_stream_bytes=-1, storage_max_stream_bytes=-1)
    )
    tiers = {"R1": {"mem_storage": 1, "streams": 2}, "R3": {"max_bytes_required": True}}
    jetstream = _convert(account(limits={**UNLIMITED, "tiered_limits": tiers})).options.jetstream
    assert jetstream is not None
    assert jetstream.tiers == {
        "R1": JetStreamTier(1, 0, 2, 0),
        "R3": JetStreamTier(0, 0, 0, 0, max_bytes_required=True),
    }
    empty = {**UNLIMITED, "tiered_limits": {"R1": {}}}
    assert _convert(account(limits=empty)).options.jetstream is None


def _importer(**fields: Any) -> str:
    return account(imports=[{"subject": "s.x", "account": B, "type": "service", **fields}])


def _exporter(**fields: Any) -> str:
    export = {"subject": "s.*", "type": "service", **fields}
    return account(OTHER_ACCOUNT, exports=[export], signing_keys=[ACCOUNT_SIGNING.public])


@pytest.mark.parametrize(
    ("fields", "subject", "local_subject"),
    [
        ({}, "s.x", ""),
        ({"local_subject": "l"}, "s.x", "l"),
        ({"subject": "l", "to": "s.x"}, "s.x", "l"),
        ({"subject": "s.*", "local_subject": "$1.l"}, "s.*", "$1.l"),
        ({"type": "stream"}, "s.x", ""),
        ({"type": "stream", "to": "pre"}, "s.x", "pre.s.x"),
        ({"type": "stream", "to": "pre."}, "s.x", "pre.s.x"),
        ({"type": "stream", "local_subject": "l"}, "s.x", "l"),
    ],
)
def test_an_import_has_a_subject_there_and_here(
    fields: dict[str, Any], subject: str, local_subject: str
) -> None:
    kind = fields.get("type", "service")
    found = _convert(_importer(**fields), _exporter(type=kind))
    wanted = ImportOptions(B, subject, kind == "service", local_subject)
    assert (found.options.imports, found.problems) == ((wanted,), ())


def test_flags_of_imports_are_taken_over() -> None:
    service = _convert(_importer(share=True), _exporter()).options.imports[0]
    assert service.is_shared
    stream = _convert(_importer(type="stream", allow_trace=True), _exporter(type="stream"))
    assert stream.options.imports[0].allows_trace


def test_an_exporter_may_come_later() -> None:
    found = _convert(_importer())
    assert found.unknown_accounts == {B}
    assert not found.options.imports
    assert "the account is not known" in found.problems[0]
    assert _convert(_importer(), _exporter()).unknown_accounts == frozenset()


@pytest.mark.parametrize(
    ("fields", "exported"),
    [
        ({"subject": "t"}, {}),
        ({"subject": "s.>"}, {}),
        ({"type": "stream"}, {}),
        ({"subject": "s.*"}, {"subject": "s.x"}),
    ],
)
def test_what_is_not_exported_is_not_imported(
    fields: dict[str, Any], exported: dict[str, Any]
) -> None:
    found = _convert(_importer(**fields), _exporter(**exported))
    assert not found.options.imports
    assert found.problems[0].endswith("the account exports no such subject")


def test_a_position_names_the_importer() -> None:
    exporter = _exporter(account_token_position=2)
    own = _convert(_importer(subject=f"s.{ACCOUNT.public}"), exporter)
    assert own.options.imports
    for subject in ("s.x", "s.*", f"s.{SYSTEM.public}"):
        found = _convert(_importer(subject=subject), exporter)
        assert not found.options.imports
        assert "token 2 of the subject" in found.problems[0]


def _activation(issuer: Any = OTHER_ACCOUNT, to: str = ACCOUNT.public, **claims: Any) -> str:
    claims = {"subject": "s.*", "kind": "service", "now_s": NOW_S, **claims}
    return mint("activation", to, issuer, **claims)


def test_an_activation_opens_an_export_until_it_is_over() -> None:
    for token, expires_s in ((_activation(), 0), (_activation(exp=NOW_S + 9), NOW_S + 9)):
        found = _convert(_importer(token=token), _exporter(token_req=True))
        assert [each.expires_ns for each in found.options.imports] == [expires_s * SECOND_NS]
    by_signing_key = _activation(ACCOUNT_SIGNING, issuer_account=B)
    assert _convert(_importer(token=by_signing_key), _exporter(token_req=True)).options.imports


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "an activation token is required"),
        ("x", "contains an invalid activation token"),
        (_activation(exp=NOW_S - 1), "claim is expired"),
        (_activation(exp=NOW_S), "claim is expired"),
        (_activation(nbf=NOW_S + 1), "claim is not yet valid"),
        (_activation(to=SYSTEM.public), "doesn't match account it is being included in"),
        (_activation(SYSTEM), "activation token doesn't match account for import"),
        (_activation(SYSTEM, issuer_account=B), "its issuer is no signing key of the account"),
        (_activation(subject="other"), "doesn't match import"),
        (_activation(kind="stream"), "mismatch between token import type stream"),
    ],
)
def test_other_activations_open_nothing(token: str, problem: str) -> None:
    found = _convert(_importer(token=token), _exporter(token_req=True))
    assert not found.options.imports
    assert problem in found.problems[0]


def test_activations_can_be_revoked() -> None:
    for name, at_s, is_open in (
        (ACCOUNT.public, NOW_S, False),
        ("*", NOW_S, False),
        (ACCOUNT.public, NOW_S - 1, True),
        (SYSTEM.public, NOW_S, True),
    ):
        exporter = _exporter(token_req=True, revocations={name: at_s})
        found = _convert(_importer(token=_activation()), exporter)
        assert bool(found.options.imports) is is_open


def test_an_account_may_import_of_itself() -> None:
    token = account(
        imports=[{"subject": "s", "account": ACCOUNT.public, "type": "service",
                  "local_subject": "l"}],
        exports=[{"subject": "s", "type": "service"}],
    )  # fmt: skip
    found = _convert(token)
    assert replace(found.options.imports[0]) == ImportOptions(ACCOUNT.public, "s", True, "l")
