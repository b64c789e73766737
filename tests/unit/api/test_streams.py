"""STREAM.* endpoints: responses against the published schemas, refusals in nats-server's words."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from streamd import limits
from streamd.api import stream_configs
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.types import ACCOUNT, AssetLimits, Entry
from tests.unit.api.bed import Bed, Stream


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_create_answers_with_all_defaults(bed: Bed) -> None:
    answer = bed.ask("STREAM.CREATE.A", {"name": "A"})
    assert answer["did_create"] is True
    assert answer["config"] == {
        "name": "A",
        "subjects": ["A"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": 120_000_000_000,
        "compression": "none",
        "allow_direct": False,
        "mirror_direct": False,
        "sealed": False,
        "deny_delete": False,
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "consumer_limits": {},
        "allow_msg_ttl": False,
        "metadata": {"_nats.level": "4", "_nats.req.level": "0", "_nats.ver": "2.14.0"},
    }
    assert answer["state"] == {
        "messages": 0,
        "bytes": 0,
        "first_seq": 0,
        "first_ts": "0001-01-01T00:00:00Z",
        "last_seq": 0,
        "last_ts": "0001-01-01T00:00:00Z",
        "consumer_count": 0,
    }


def test_create_again_with_equal_config_shows_the_stream(bed: Bed) -> None:
    first = bed.ask("STREAM.CREATE.A", {"name": "A"})
    again = bed.ask("STREAM.CREATE.A", {"NAME": "A", "Subjects": ["A"]})
    assert again["created"] == first["created"]
    assert bed.error("STREAM.CREATE.A", {"name": "A", "subjects": ["b"]})[0] == 10058


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"name": ""}, 10056, "stream name in subject does not match request"),
    ({"name": "B"}, 10056, "stream name in subject does not match request"),
    ({"description": "x" * 4097}, 10052, "stream description is too long, maximum allowed is 4096"),
    (
        {"metadata": {"a": "x" * 131072}},
        10052,
        "stream metadata exceeds maximum size of 131072 bytes",
    ),
    ({"subjects": ["a", "a"]}, 10052, 'subject "a" overlaps with "a"'),
    ({"subjects": ["a.>", "a.b"]}, 10052, 'subject "a.>" overlaps with "a.b"'),
    ({"subjects": ["a..b"]}, 10052, "invalid subject"),
    ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack to be true"),
    (
        {"subjects": ["$JS.foo"]},
        10052,
        "subjects that overlap with jetstream api require no-ack to be true",
    ),
    (
        {"subjects": ["*.*"]},
        10052,
        "subjects that overlap with jetstream api require no-ack to be true",
    ),
    (
        {"subjects": ["$SYS.a"]},
        10052,
        "subjects that overlap with system api require no-ack to be true",
    ),
    ({"max_msgs": -5, "pedantic": True}, 10157, "pedantic mode: max_msgs must be set to -1"),
    ({"max_age": 1}, 10052, "max age needs to be >= 100ms"),
    ({"max_age": -1}, 10052, "max age can not be negative"),
    (
        {"max_age": 10**9, "duplicate_window": 2 * 10**9},
        10052,
        "duplicates window can not be larger then max age",
    ),
    ({"duplicate_window": -1}, 10052, "duplicates window can not be negative"),
    ({"duplicate_window": 1}, 10052, "duplicates window needs to be >= 100ms"),
    ({"num_replicas": 2}, 10074, "replicas > 1 not supported in non-clustered mode"),
    ({"num_replicas": 6}, 10052, "maximum replicas is 5"),
    ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
    (
        {"discard_new_per_subject": True},
        10052,
        "discard new per subject requires discard new policy to be set",
    ),
    (
        {"discard_new_per_subject": True, "discard": "new"},
        10052,
        "discard new per subject requires max msgs per subject > 0",
    ),
    (
        {"deny_purge": True, "allow_rollup_hdrs": True},
        10052,
        "roll-ups require the purge permission",
    ),
    ({"sealed": True}, 10052, "stream configuration for create can not be sealed"),
    ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
    (
        {"subject_delete_marker_ttl": 1},
        10052,
        "subject delete marker TTL must be at least 1 second",
    ),
    ({"subjects": [""]}, 10052, "invalid subject"),
    ({"placement": {"preferred": "a"}}, 10052, "preferred server not permitted in placement"),
    (
        {"republish": {"src": "a", "dest": "r.>"}},
        10052,
        "stream configuration for republish with transform from 'a' to 'r.>' not valid",
    ),
    (
        {"republish": {"src": "A", "dest": "A"}},
        10052,
        "stream configuration for republish destination forms a cycle",
    ),
    (
        {"mirror": {"name": "X"}, "subjects": ["a"]},
        10034,
        "stream mirrors can not contain subjects",
    ),
    ({"mirror": {"name": ""}}, 10142, "mirrored stream name is invalid"),
    ({"sources": [{"name": "a.b"}]}, 10141, "sourced stream name is invalid"),
    (
        {"subject_delete_marker_ttl": -1},
        10052,
        "subject delete marker TTL must not be negative",
    ),
    (
        {"subject_delete_marker_ttl": 10**9, "pedantic": True},
        10052,
        "subject delete marker cannot be set if message TTLs are disabled",
    ),
    (
        {"subject_delete_marker_ttl": 10**9, "allow_msg_ttl": True, "pedantic": True},
        10052,
        "subject delete marker cannot be set if roll-ups are disabled",
    ),
    (
        {"max_age": 10**9, "pedantic": True},
        10157,
        "pedantic mode: duplicate window cannot be bigger than max age",
    ),
    (
        {"subjects": [">"], "no_ack": True, "num_replicas": 3},
        10052,
        "capturing all subjects requires replicas of 1",
    ),
    (
        {"persist_mode": "async", "storage": "memory"},
        10052,
        "async persist mode is only supported on file storage",
    ),
    (
        {"persist_mode": "async", "num_replicas": 3},
        10052,
        "async persist mode is not supported on replicated streams",
    ),
    (
        {"persist_mode": "async", "allow_atomic": True},
        10052,
        "async persist mode is not supported with atomic batch publish",
    ),
    ({"retention": "zz"}, 10025, 'invalid JSON: can not unmarshal "\\"zz\\""'),
    ({"zz": 1}, 10025, 'invalid JSON: json: unknown field "zz"'),
]


# What is not served is refused in nats-server's words where it would refuse it too.
_MIRROR = {"mirror": {"name": "X"}}
_TRANSFORMED = {"filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}
UNSERVED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"allow_msg_counter": True, "discard": "new"},
        10052,
        "counter stream cannot use discard new",
    ),
    (
        {"allow_msg_counter": True, "allow_msg_ttl": True},
        10052,
        "counter stream cannot use message TTLs",
    ),
    (
        {"allow_msg_counter": True, "allow_msg_schedules": True},
        10052,
        "counter stream cannot use message schedules",
    ),
    (
        {"allow_msg_counter": True, "retention": "interest"},
        10052,
        "counter stream can only use limits retention",
    ),
    (
        {"allow_msg_schedules": True, "discard": "new"},
        10052,
        "message scheduling cannot use discard new",
    ),
    (
        {"allow_msg_schedules": True, "pedantic": True},
        10052,
        "message scheduling cannot be set if roll-ups are disabled",
    ),
    (_MIRROR | {"first_seq": 5}, 10143, "stream mirrors can not have first sequence configured"),
    (
        _MIRROR | {"sources": [{"name": "Y"}]},
        10031,
        "stream mirrors can not also contain other sources",
    ),
    (
        _MIRROR | {"allow_msg_counter": True},
        10173,
        "stream mirrors can not also calculate counters",
    ),
    (_MIRROR | {"allow_atomic": True}, 10198, "stream mirrors can not also use atomic publishing"),
    (_MIRROR | {"allow_batched": True}, 10209, "stream mirrors can not also use batch publishing"),
    (
        _MIRROR | {"allow_msg_schedules": True},
        10186,
        "stream mirrors can not also schedule messages",
    ),
    (
        _MIRROR | {"subject_delete_marker_ttl": 10**9},
        10052,
        "subject delete markers forbidden on mirrors",
    ),
    (
        {"mirror": {"name": "X"} | _TRANSFORMED},
        10150,
        "mirror with multiple subject transforms cannot also have a single subject filter",
    ),
    (
        {"sources": [{"name": "X"} | _TRANSFORMED]},
        10144,
        "source with multiple subject transforms cannot also have a single subject filter",
    ),
    ({"sources": [{"name": "X"}] * 2}, 10140, "duplicate source configuration detected"),
    (
        {"subject_transform": {"src": "a..b", "dest": "c"}},
        10155,
        "stream transform source: invalid subject a..b",
    ),
    (
        {"subject_transform": {"src": "a", "dest": "c.*"}},
        10156,
        "stream transform: invalid subject",
    ),
]


@pytest.mark.parametrize(("config", "err_code", "text"), REFUSED + UNSERVED)
def test_create_refuses(bed: Bed, config: dict[str, Any], err_code: int, text: str) -> None:
    assert bed.error("STREAM.CREATE.A", {"name": "A"} | config) == (err_code, text)
    assert bed.node.streams() == []


SHAPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_msgs": -5}, {}),
    ({"max_age": 10**8}, {"max_age": 10**8, "duplicate_window": 10**8}),
    (
        {"subject_delete_marker_ttl": 10**9, "deny_purge": True},
        {
            "subject_delete_marker_ttl": 10**9,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "metadata": {"_nats.level": "4", "_nats.req.level": "1", "_nats.ver": "2.14.0"},
        },
    ),
    ({"placement": {}}, {}),
    ({"num_replicas": 0, "max_msgs": 0, "max_consumers": 0}, {}),
    ({"subjects": ["$JS.EVENT.x", "$SYS.ACCOUNT.x"]},) * 2,
    ({"consumer_limits": {"max_ack_pending": 0}}, {}),
    ({"republish": {"dest": "r.>"}}, {"republish": {"src": ">", "dest": "r.>"}}),
    ({"persist_mode": "default"}, {}),
    (
        {"metadata": {"_nats.req.level": "9", "_nats.ver": "1", "a": "b"}},
        {
            "metadata": {
                "_nats.level": "4",
                "_nats.req.level": "0",
                "_nats.ver": "2.14.0",
                "a": "b",
            }
        },
    ),
]


@pytest.mark.parametrize(("given", "changes"), SHAPED)
def test_create_fills_in_what_was_meant(
    bed: Bed, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    plain = bed.ask("STREAM.CREATE.P", {"name": "P", "subjects": ["P"]})["config"]
    shown = bed.ask("STREAM.CREATE.A", {"name": "A", "subjects": ["a"]} | given)["config"]
    expected = plain | {"name": "A", "subjects": ["a"]} | changes
    assert shown == expected


def test_a_stream_that_cannot_be_opened_is_offline_and_not_gone(bed: Bed) -> None:
    bed.make("A")
    bed.node._streams.pop(("$G", "A"))
    bed.node.failed["$G", "A"] = "CorruptionError: block 1"
    for request, body in (
        ("STREAM.INFO.A", b""),
        ("STREAM.PURGE.A", b""),
        ("CONSUMER.INFO.A.c", b""),
        ("CONSUMER.CREATE.A.c", {"stream_name": "A", "config": {"name": "c"}}),
    ):
        assert bed.error(request, body) == (10194, "stream is offline: CorruptionError: block 1")
    assert bed.error("STREAM.INFO.B")[0] == 10059


def test_update_replaces_the_config_but_not_its_foundations(bed: Bed) -> None:
    bed.make("T", subjects=["t.>"])
    bed.make("O", subjects=["o.>"])
    same = {"name": "T", "subjects": ["t.>"]}
    assert bed.ask("STREAM.UPDATE.T", same | {"max_msgs": 5})["config"]["max_msgs"] == 5
    assert bed.ask("STREAM.UPDATE.T", same)["config"]["max_msgs"] == -1
    assert bed.error("STREAM.UPDATE.Z", {"name": "Z"})[0] == 10059
    assert bed.error("STREAM.UPDATE.T", {"name": "O"})[0] == 10056
    assert bed.error("STREAM.UPDATE.T", {})[0] == 10052
    assert bed.error("STREAM.UPDATE.T", same | {"subjects": ["o.x"]})[0] == 10065
    for change, text in (
        ({"storage": "memory"}, "stream configuration update can not change storage type"),
        (
            {"retention": "workqueue"},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"persist_mode": "async"},
            "stream configuration update can not change persist mode",
        ),
        (
            {"allow_msg_counter": True},
            "stream configuration update can not change message counter setting",
        ),
    ):
        assert bed.error("STREAM.UPDATE.T", same | change) == (10052, text)


def test_an_update_cannot_take_back_permanent_settings(bed: Bed) -> None:
    given = {"deny_delete": True, "deny_purge": True, "allow_msg_ttl": True}
    bed.make("T", **given)
    for field, text in (
        ("deny_delete", "stream configuration update can not cancel deny message deletes"),
        ("deny_purge", "stream configuration update can not cancel deny purge"),
        ("allow_msg_ttl", "message TTL status can not be disabled"),
    ):
        change = {"name": "T"} | given | {field: False}
        assert bed.error("STREAM.UPDATE.T", change) == (10052, text)
    mirror = {"name": "T", "mirror": {"name": "X"}}
    assert bed.error("STREAM.UPDATE.T", mirror)[0] == 10055


def test_sealing_is_for_ever(bed: Bed) -> None:
    stream = bed.make("T")
    stream.store("T")
    sealed = bed.ask("STREAM.UPDATE.T", {"name": "T", "sealed": True})["config"]
    assert sealed["discard"] == "new"
    assert sealed["deny_delete"] and sealed["deny_purge"] and sealed["sealed"]
    assert bed.error("STREAM.UPDATE.T", {"name": "T"}) == (
        10052,
        "stream configuration update can not unseal a sealed stream",
    )
    assert bed.error("STREAM.PURGE.T")[0] == 10109
    assert bed.error("STREAM.MSG.DELETE.T", {"seq": 1})[0] == 10109


def test_update_refuses_limits_that_consumers_exceed(bed: Bed) -> None:
    bed.make("T")
    bed.make_consumer("T", "a", ack_policy="explicit", max_ack_pending=100)
    refused = bed.error("STREAM.UPDATE.T", {"name": "T", "consumer_limits": {"max_ack_pending": 5}})
    assert refused == (10069, "change to limits violates consumers: a")


def test_info_shows_subjects_and_deleted_on_demand(bed: Bed) -> None:
    stream = bed.make("T", subjects=["t.>"])
    for at in range(6):
        stream.store(f"t.{at % 3}", b"x" * 10)
    bed.ask("STREAM.MSG.DELETE.T", {"seq": 3})
    state = bed.ask("STREAM.INFO.T", {"deleted_details": True})["state"]
    assert (state["messages"], state["num_subjects"], state["num_deleted"]) == (5, 3, 1)
    assert state["deleted"] == [3]
    info = bed.ask("STREAM.INFO.T", {"subjects_filter": "t.*"})
    assert (info["total"], info["offset"], info["limit"]) == (3, 0, 100_000)
    assert info["state"]["subjects"] == {"t.0": 2, "t.1": 2, "t.2": 1}
    info = bed.ask("STREAM.INFO.T", {"subjects_filter": "zz"})
    assert (info["total"], info["limit"], "subjects" in info["state"]) == (0, 0, False)
    assert info["cluster"] == {"leader": "bed"}
    assert bed.error("STREAM.INFO.Z")[0] == 10059
    assert "config" in bed.ask("STREAM.INFO.T", b'"ignored"')


def test_deleted_seqs_are_shown_a_page_at_a_time(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key at the begin, behind it ten million updates of another that are gone again: no answer
    lists them all. The peer lists all, and takes what that takes."""
    stream = bed.make("T", subjects=["t.>"])
    stream.store("t.1", b"x")
    stream.machine.index.skip(2, 10_000_001)
    stream.store("t.2", b"x")
    page = limits.DELETED_DETAIL_PAGE
    began = time.process_time()
    assert stream.machine.index.live.deleted.page(9_000_000, page) == list(
        range(9_000_002, 9_100_002)
    )
    assert time.process_time() - began < 1, "to list all takes many times that"
    monkeypatch.setattr(limits, "DELETED_DETAIL_PAGE", 1000)
    for offset, first, count in (
        (0, 2, 1000),
        (1000, 1002, 1000),
        (9_999_500, 9_999_502, 500),
        (10_000_000, 0, 0),
        (1 << 60, 0, 0),
    ):
        info = bed.ask("STREAM.INFO.T", {"deleted_details": True, "offset": offset})
        assert info["state"]["num_deleted"] == info["total"] == 10_000_000
        assert info["state"].get("deleted", []) == list(range(first, first + count))
        assert (info["offset"], info["limit"]) == (offset, 1000)
    info = bed.ask("STREAM.INFO.T", {"deleted_details": True, "subjects_filter": ">", "offset": 1})
    assert (info["total"], info["limit"], info["offset"]) == (2, 100_000, 1), "of the subjects"
    assert info["state"]["deleted"] == list(range(2, 1002))
    assert list(info["state"]["subjects"]) == ["t.2"]


def test_few_deleted_seqs_are_shown_whatever_the_offset(bed: Bed) -> None:
    stream = bed.make("T", subjects=["t.>"])
    for _ in range(4):
        stream.store("t.1", b"x")
    for seq in (2, 3):
        bed.ask("STREAM.MSG.DELETE.T", {"seq": seq})
    info = bed.ask("STREAM.INFO.T", {"deleted_details": True, "offset": 1})
    assert info["state"]["deleted"] == [2, 3]
    assert (info["total"], info["offset"], info["limit"]) == (0, 0, 0)


def test_names_and_lists_are_paged_and_filtered(bed: Bed) -> None:
    assert bed.ask("STREAM.NAMES")["streams"] is None
    assert bed.ask("STREAM.LIST")["streams"] == []
    for at in range(300):
        bed.make(f"S{at:03}", subjects=[f"s.{at}"])
    names = bed.ask("STREAM.NAMES")
    assert (names["total"], len(names["streams"]), names["limit"]) == (300, 300, 1024)
    page = bed.ask("STREAM.LIST", {"offset": 250})
    assert (page["total"], page["offset"], page["limit"]) == (300, 250, 256)
    assert [info["config"]["name"] for info in page["streams"]] == names["streams"][250:]
    assert page["streams"][0]["config"]["metadata"] == {"_nats.req.level": "0"}
    assert bed.ask("STREAM.NAMES", {"subject": "s.7"})["streams"] == ["S007"]
    assert bed.ask("STREAM.NAMES", {"offset": 999})["offset"] == 300
    assert bed.ask("STREAM.NAMES", {"offset": -1})["offset"] == 0


def test_delete_wants_an_empty_request(bed: Bed) -> None:
    bed.make("A")
    assert bed.error("STREAM.DELETE.A", b"x")[0] == 10038
    assert bed.error("STREAM.DELETE.Z")[0] == 10059
    assert bed.ask("STREAM.DELETE.A", b" {} ")["success"] is True
    assert bed.node.streams() == []


def test_purge_by_filter_seq_and_keep(bed: Bed) -> None:
    stream = bed.make("T", subjects=["t.>"])
    for at in range(6):
        stream.store(f"t.{at % 3}")
    assert bed.ask("STREAM.PURGE.T", {"filter": "t.1", "keep": 1})["purged"] == 1
    assert bed.ask("STREAM.PURGE.T", {"seq": 4})["purged"] == 2
    assert bed.error("STREAM.PURGE.T", {"seq": 3, "keep": 1})[0] == 10003
    assert bed.ask("STREAM.PURGE.T", b"x")["purged"] == 3
    state = bed.ask("STREAM.INFO.T")["state"]
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (7, 6, 0)
    bed.make("D", deny_purge=True)
    assert bed.error("STREAM.PURGE.D") == (10110, "stream purge not permitted")


def test_bytes_reserved_by_limits_are_refused_beyond_the_servers_own(bed: Bed) -> None:
    bed.node.storage_max = 1000
    bed.make("A", max_bytes=600)
    assert bed.error("STREAM.CREATE.B", {"name": "B", "max_bytes": 500})[0] == 10047
    bed.node.memory_max = 10
    memory = {"name": "B", "max_bytes": 11, "storage": "memory"}
    assert bed.error("STREAM.CREATE.B", memory)[0] == 10028


def test_unserved_features_are_refused_by_name(bed: Bed) -> None:
    bed.make("T")
    assert bed.error("STREAM.LEADER.STEPDOWN.T")[0] == 10010
    assert bed.error("STREAM.PEER.REMOVE.T")[0] == 10010
    assert bed.error("STREAM.SNAPSHOT.T", {"deliver_subject": "x.*"})[0] == 10015
    assert bed.error("STREAM.RESTORE.T", {"config": {"name": "T"}})[0] == 10130
    for subject in ("NOPE", "STREAM", "STREAM.CREATE", "STREAM.CREATE.A.B", "STREAM.INFO.T.x"):
        assert bed.ask_raw(subject) == []


def test_required_api_level(bed: Bed) -> None:
    def headers(level: bytes) -> bytes:
        return b"NATS/1.0\r\nNats-Required-Api-Level: " + level + b"\r\n\r\n"

    assert bed.ask("INFO", headers=headers(b"4"))["api"]["level"] == 4
    assert bed.error("INFO", headers=headers(b"9"))[0] == 10185
    assert bed.error("STREAM.NAMES", headers=headers(b"x"))[0] == 10185
    assert bed.error("STREAM.NAMES", headers=headers(b"9" * 5000))[0] == 10185
    assert bed.ask_raw("DIRECT.GET.T", headers=headers(b"9")) == [
        (b"NATS/1.0 412 Required Api Level\r\n\r\n", b"")
    ]


def test_account_info_counts(bed: Bed) -> None:
    bed.make("T", max_bytes=100)
    bed.make_consumer("T", "a")
    bed.error("STREAM.INFO.Z")
    info = bed.ask("INFO")
    assert (info["streams"], info["consumers"], info["reserved_storage"]) == (1, 1, 100)
    assert info["api"] == {"level": 4, "total": 3, "errors": 1}
    assert info["limits"]["max_streams"] == -1


def test_server_limits_the_duplicate_window() -> None:
    """Its limit is the default if that is longer; asking for more is refused, on updates too."""
    bed = Bed(AssetLimits(duplicate_window_ns_max=30 * 10**9))

    def window(**config: Any) -> int:
        answer = bed.ask("STREAM.CREATE.S", {"name": "S"} | config)
        bed.ask("STREAM.DELETE.S")
        return int(answer["config"]["duplicate_window"])

    assert window() == window(max_age=60 * 10**9) == 30 * 10**9
    assert window(max_age=10 * 10**9) == 10 * 10**9
    assert window(duplicate_window=20 * 10**9) == 20 * 10**9
    longer = {"name": "S", "duplicate_window": 60 * 10**9}
    text = "duplicates window can not be larger then server limit of 30s"
    assert bed.error("STREAM.CREATE.S", longer) == (10052, text)
    bed.make("S")
    assert bed.error("STREAM.UPDATE.S", longer) == (10052, text)
    code, said = bed.error("STREAM.CREATE.P", {"name": "P", "pedantic": True})
    assert (code, said.partition(": ")[2]) == (
        10157,
        "duplicate window limits are higher than current limits",
    )


def test_streams_that_are_not_served_are_listed_as_missing(bed: Bed) -> None:
    """They are still there: their names too, and why."""
    for name in ("A", "B", "C"):
        bed.make(name)
    for name in ("A", "B"):
        del bed.node._streams["$G", name]
    bed.node.failed["$G", "B"] = "CorruptionError: block 1"
    answer = bed.ask("STREAM.LIST")
    assert [row["config"]["name"] for row in answer["streams"]] == ["C"]
    assert (answer["total"], answer["missing"]) == (3, ["A", "B"])
    assert answer["offline"] == {"B": "CorruptionError: block 1"}
    assert bed.ask("STREAM.NAMES")["streams"] == ["A", "B", "C"]
    assert "missing" not in bed.ask("STREAM.LIST", {"subject": "C"})


def test_a_stream_that_is_listed_answers(bed: Bed) -> None:
    """It is known before its group runs, and whole before its group has heard of that: requests
    wait. One that is being restored is neither listed nor found."""

    def decide(kind: int, *rest: Any) -> None:
        """Have the meta group apply a command of which no stream's group has heard."""
        meta = bed.node.meta
        command = [kind, bed.node.clock.ns, *rest]
        meta.apply(Entry(1, meta.applied + 1, b"x", command), Effects())

    normal = stream_configs.normalise({"name": "A", "subjects": ["a"]})
    part = stream_configs.restored(stream_configs.owned(normal, ACCOUNT), is_whole=False)
    decide(commands.CREATE_STREAM, part, None)
    assert bed.ask("STREAM.NAMES")["streams"] is None
    assert bed.error("STREAM.INFO.A")[0] == 10059
    decide(commands.UPDATE_STREAM, "A", stream_configs.restored(part, is_whole=True))
    assert bed.ask("STREAM.NAMES")["streams"] == ["A"]
    bed.soon.clear()
    assert not bed.ask_raw("STREAM.INFO.A")
    asset = bed.node.meta.stream("A")
    assert asset is not None
    stream = Stream(bed.node, asset._replace(config=part))
    bed.node.run(stream)
    bed.soon.pop()()
    assert len(bed.soon) == 1  # again
    stream.apply([commands.CONFIGURE, bed.node.clock.ns, asset.config, asset.update_index])
    bed.soon.pop()()
    ((_, _, _, payload),) = bed.wires.sent
    assert json.loads(payload)["config"]["name"] == "A"
    assert not bed.soon
