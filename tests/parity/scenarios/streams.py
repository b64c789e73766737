"""Stream configuration, life and state."""

from __future__ import annotations

from typing import Any

from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import ArchivedConsumer, ArchivedMessages, Record
from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario

SECOND = 1_000_000_000
LONG = "n" * 256

CREATE: dict[str, Any] = {
    "minimal": {"name": "S", "subjects": ["s.>"]},
    "no_subjects": {"name": "S"},
    "empty_subjects": {"name": "S", "subjects": []},
    "memory": {"name": "S", "subjects": ["s"], "storage": "memory"},
    "all_common_fields": {
        "name": "S", "subjects": ["s.*", "t"], "description": "all of it", "retention": "limits",
        "max_consumers": 7, "max_msgs": 100, "max_bytes": 100000, "max_age": 3600 * SECOND,
        "max_msgs_per_subject": 5, "max_msg_size": 1000, "discard": "new", "storage": "file",
        "num_replicas": 1, "duplicate_window": 60 * SECOND, "deny_delete": True,
        "deny_purge": True, "allow_direct": True, "compression": "s2", "first_seq": 100,
        "discard_new_per_subject": True, "metadata": {"owner": "me"},
        "consumer_limits": {"inactive_threshold": SECOND * 100, "max_ack_pending": 50},
    },
    "interest": {"name": "S", "subjects": ["s"], "retention": "interest"},
    "workqueue": {"name": "S", "subjects": ["s"], "retention": "workqueue"},
    "no_ack": {"name": "S", "subjects": ["s"], "no_ack": True},
    "rollup": {"name": "S", "subjects": ["s"], "allow_rollup_hdrs": True},
    "atomic": {"name": "S", "subjects": ["s"], "allow_atomic": True},
    "ttl": {"name": "S", "subjects": ["s"], "allow_msg_ttl": True},
    "marker_ttl": {"name": "S", "subjects": ["s"], "subject_delete_marker_ttl": SECOND * 5},
    "marker_ttl_small": {"name": "S", "subjects": ["s"], "subject_delete_marker_ttl": 1000},
    "marker_ttl_negative": {"name": "S", "subjects": ["s"], "subject_delete_marker_ttl": -1},
    "window_over_age": {"name": "S", "subjects": ["s"], "max_age": SECOND,
                        "duplicate_window": 2 * SECOND},
    "window_default_with_age": {"name": "S", "subjects": ["s"], "max_age": SECOND},
    "window_negative": {"name": "S", "subjects": ["s"], "duplicate_window": -5},
    "window_tiny": {"name": "S", "subjects": ["s"], "duplicate_window": 1000},
    "age_tiny": {"name": "S", "subjects": ["s"], "max_age": 1000},
    "age_negative": {"name": "S", "subjects": ["s"], "max_age": -1},
    "zero_limits": {"name": "S", "subjects": ["s"], "max_msgs": 0, "max_bytes": 0,
                    "max_consumers": 0, "max_msg_size": 0, "max_msgs_per_subject": 0},
    "negative_limits": {"name": "S", "subjects": ["s"], "max_msgs": -7, "max_bytes": -7,
                        "max_consumers": -7, "max_msg_size": -7, "max_msgs_per_subject": -7},
    "bad_retention": {"name": "S", "subjects": ["s"], "retention": "zzz"},
    "bad_storage": {"name": "S", "subjects": ["s"], "storage": "zzz"},
    "bad_discard": {"name": "S", "subjects": ["s"], "discard": "zzz"},
    "bad_compression": {"name": "S", "subjects": ["s"], "compression": "zzz"},
    "unknown_field": {"name": "S", "subjects": ["s"], "colour": "red"},
    "wrong_type": {"name": "S", "subjects": "s"},
    "wrong_type_number": {"name": "S", "subjects": ["s"], "max_msgs": "many"},
    "float_number": {"name": "S", "subjects": ["s"], "max_msgs": 1.5},
    "huge_number": {"name": "S", "subjects": ["s"], "max_msgs": 2**70},
    "field_case": {"Name": "S", "SUBJECTS": ["s"]},
    "null_fields": {"name": "S", "subjects": None, "description": None},
    "other_name": {"name": "T", "subjects": ["s"]},
    "empty_name": {"name": "", "subjects": ["s"]},
    "absent_name": {"subjects": ["s"]},
    "duplicate_subjects": {"name": "S", "subjects": ["s", "s"]},
    "overlapping_subjects": {"name": "S", "subjects": ["s.*", "s.a"]},
    "invalid_subject": {"name": "S", "subjects": ["s..a"]},
    "space_in_subject": {"name": "S", "subjects": ["s a"]},
    "empty_subject": {"name": "S", "subjects": [""]},
    "subject_all": {"name": "S", "subjects": [">"]},
    "subject_all_no_ack": {"name": "S", "subjects": [">"], "no_ack": True},
    "subject_js_api": {"name": "S", "subjects": ["$JS.API.>"]},
    "subject_js_event": {"name": "S", "subjects": ["$JS.EVENT.>"]},
    "subject_sys": {"name": "S", "subjects": ["$SYS.>"]},
    "subject_star_first": {"name": "S", "subjects": ["*"]},
    "replicas_3": {"name": "S", "subjects": ["s"], "num_replicas": 3},
    "replicas_7": {"name": "S", "subjects": ["s"], "num_replicas": 7},
    "replicas_negative": {"name": "S", "subjects": ["s"], "num_replicas": -1},
    "replicas_0": {"name": "S", "subjects": ["s"], "num_replicas": 0},
    "sealed": {"name": "S", "subjects": ["s"], "sealed": True},
    "deny_purge_with_rollup": {"name": "S", "subjects": ["s"], "deny_purge": True,
                               "allow_rollup_hdrs": True},
    "per_subject_without_new": {"name": "S", "subjects": ["s"], "discard_new_per_subject": True,
                                "max_msgs_per_subject": 1},
    "per_subject_without_max": {"name": "S", "subjects": ["s"], "discard_new_per_subject": True,
                                "discard": "new"},
    "null_subject": {"name": "S", "subjects": [None]},
    "null_source": {"name": "S", "subjects": ["s"], "sources": [None]},
    "compression_null": {"name": "S", "subjects": ["s"], "compression": None},
    "compression_list": {"name": "S", "subjects": ["s"], "compression": []},
    "compression_object": {"name": "S", "subjects": ["s"], "compression": {}},
    "first_seq_one": {"name": "S", "subjects": ["s"], "first_seq": 1},
    "pedantic_tiny_age": {"name": "S", "subjects": ["s"], "max_age": 1, "pedantic": True},
    "pedantic_republish": {"name": "S", "subjects": ["s"], "republish": {"dest": "r.>"},
                           "pedantic": True},
    "mirror_direct_alone": {"name": "S", "subjects": ["s"], "mirror_direct": True},
    "long_description": {"name": "S", "subjects": ["s"], "description": "d" * 4097},
    "description_at_limit": {"name": "S", "subjects": ["s"], "description": "d" * 4096},
    "big_metadata": {"name": "S", "subjects": ["s"], "metadata": {"k": "v" * 131072}},
    "metadata_reserved": {"name": "S", "subjects": ["s"], "metadata": {"_nats.x": "1"}},
    "first_seq": {"name": "S", "subjects": ["s"], "first_seq": 1000},
    "consumer_limits_negative": {"name": "S", "subjects": ["s"],
                                 "consumer_limits": {"inactive_threshold": -1}},
    "pedantic_zero_limits": {"name": "S", "subjects": ["s"], "max_msgs": 0, "pedantic": True},
    "pedantic_exact": {"name": "S", "subjects": ["s"], "max_msgs": -1, "max_bytes": -1,
                       "max_consumers": -1, "max_msg_size": -1, "max_msgs_per_subject": -1,
                       "num_replicas": 1, "duplicate_window": 120 * SECOND, "pedantic": True},
    "unicode_name_fields": {"name": "S", "subjects": ["s.é.日本"], "description": "naïve ✓"},
    "placement_single": {"name": "S", "subjects": ["s"], "placement": {"cluster": "c1"}},
    "compression_empty": {"name": "S", "subjects": ["s"], "compression": ""},
    "compression_case": {"name": "S", "subjects": ["s"], "compression": "S2"},
    "compression_memory": {"name": "S", "subjects": ["s"], "compression": "s2",
                           "storage": "memory"},
    "persist_empty": {"name": "S", "subjects": ["s"], "persist_mode": ""},
    "persist_default": {"name": "S", "subjects": ["s"], "persist_mode": "default"},
    "persist_other": {"name": "S", "subjects": ["s"], "persist_mode": "zzz"},
    "persist_async_batched": {"name": "S", "subjects": ["s"], "persist_mode": "async",
                              "allow_batched": True},
    "persist_async_file": {"name": "S", "subjects": ["s"], "persist_mode": "async"},
}  # fmt: skip


def _create(config: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", config)
        if not str(config.get("subjects")).startswith(("['>", "['$JS")):
            at.api("STREAM.INFO.S")  # those store API traffic: how many messages is chance

    return run


for _key, _config in CREATE.items():
    add(f"streams.create_{_key}", _create(_config))

NAMES = {
    "dash_underscore": "a-b_c9",
    "long": LONG,
    "max": "n" * 255,
    "slash": "a/b",
    "backslash": "a\\b",
    "unicode": "é",
}


def _named(name: str) -> Any:
    def run(at: Recorder) -> None:
        at.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s"]})
        at.api(f"STREAM.INFO.{name}")

    return run


for _key, _name in NAMES.items():
    add(f"streams.name_{_key}", _named(_name))

BODIES = {
    "not_json": b"hello",
    "half_json": b'{"name":"S"',
    "array": b"[1,2]",
    "string": b'"S"',
    "empty": b"",
    "blank": b" ",
    "null": b"null",
    "trailing": b'{"name":"S","subjects":["s"]} x',
    "duplicate_key": b'{"name":"S","name":"S","subjects":["s"]}',
    "bad_utf8": b'{"name":"S","subjects":["s"],"description":"\xff\xfe"}',
    "deep": b'{"name":' + b"[" * 200 + b"]" * 200 + b"}",
}


def _body(body: bytes) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", body)
        at.api("STREAM.NAMES")

    return run


for _key, _bytes in BODIES.items():
    add(f"streams.body_{_key}", _body(_bytes))

BASE = {"name": "S", "subjects": ["s.>"], "max_msgs": 100}
UPDATE: dict[str, dict[str, Any]] = {
    "same": {},
    "subjects": {"subjects": ["s.>", "t"]},
    "remove_subject": {"subjects": ["u"]},
    "max_msgs_down": {"max_msgs": 2},
    "max_bytes": {"max_bytes": 50},
    "max_age": {"max_age": 100 * SECOND},
    "description": {"description": "new"},
    "retention_interest": {"retention": "interest"},
    "retention_workqueue": {"retention": "workqueue"},
    "storage": {"storage": "memory"},
    "discard": {"discard": "new"},
    "seal": {"sealed": True},
    "deny_delete": {"deny_delete": True},
    "first_seq": {"first_seq": 50},
    "replicas": {"num_replicas": 3},
    "name": {"name": "T"},
    "allow_direct": {"allow_direct": True},
    "compression": {"compression": "s2"},
    "max_consumers": {"max_consumers": 5},
    "mirror_direct": {"mirror_direct": True},
    "allow_ttl": {"allow_msg_ttl": True},
    "allow_atomic": {"allow_atomic": True},
    "counter": {"allow_msg_counter": True},
    "metadata": {"metadata": {"a": "b"}},
    "max_msgs_per_subject": {"max_msgs_per_subject": 1},
    "unknown_field": {"zzz": 1},
    "window": {"duplicate_window": 5 * SECOND},
    "invalid_subject": {"subjects": ["a..b"]},
}


def _update(change: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", BASE, is_quiet=True)
        at.fill("s.a", "s.b", "s.a", "s.c", "s.a")
        at.api("STREAM.UPDATE.S", BASE | change)
        at.api("STREAM.INFO.S")

    return run


for _key, _change in UPDATE.items():
    add(f"streams.update_{_key}", _update(_change))


@scenario
def update_back_from_denied(at: Recorder) -> None:
    """deny_delete, deny_purge, sealed and allow_msg_ttl can not be taken back."""
    config = BASE | {"deny_delete": True, "deny_purge": True, "allow_msg_ttl": True}
    at.api("STREAM.CREATE.S", config)
    at.api("STREAM.UPDATE.S", config | {"deny_delete": False})
    at.api("STREAM.UPDATE.S", config | {"deny_purge": False})
    at.api("STREAM.UPDATE.S", config | {"allow_msg_ttl": False})
    at.api("STREAM.UPDATE.S", config | {"sealed": True})
    at.api("STREAM.UPDATE.S", config | {"sealed": False})
    at.pub("s.a")


@scenario
def update_missing(at: Recorder) -> None:
    at.api("STREAM.UPDATE.S", BASE)
    at.api("STREAM.UPDATE.S", b"nonsense")


@scenario
def update_subject_overlap(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]})
    at.api("STREAM.UPDATE.T", {"name": "T", "subjects": ["t.>", "s.x"]})


@scenario
def create_twice(at: Recorder) -> None:
    """The same configuration again is a success; another one is an error."""
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.CREATE.S", BASE | {"max_msgs": 5})
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": ["s.a"]})
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": [">"]})


@scenario
def info_missing_and_odd(at: Recorder) -> None:
    at.api("STREAM.INFO.S")
    at.api("STREAM.INFO.S", b"nonsense")
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.INFO.S", b"nonsense")
    at.api("STREAM.INFO.S", b"{bad")
    at.api("STREAM.INFO.S", {"zzz": 1})
    at.api("STREAM.INFO.S", {"offset": -5})
    at.api("STREAM.INFO.S", {"deleted_details": "yes"})


@scenario
def info_subjects(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE)
    at.fill("s.a", "s.b", "s.a", "s.b.c", "s.d")
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})
    at.api("STREAM.INFO.S", {"subjects_filter": "s.*"})
    at.api("STREAM.INFO.S", {"subjects_filter": "none"})
    at.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": 2})
    at.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": 20})


@scenario
def info_deleted(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE)
    at.fill(*["s.a"] * 8)
    for seq in (3, 4, 6, 1):
        at.api("STREAM.MSG.DELETE.S", {"seq": seq})
    at.api("STREAM.INFO.S", {"deleted_details": True})
    at.api("STREAM.INFO.S")
    at.api("STREAM.MSG.DELETE.S", {"seq": 2})
    at.api("STREAM.INFO.S", {"deleted_details": True})
    at.api("STREAM.MSG.DELETE.S", {"seq": 8})
    at.api("STREAM.INFO.S", {"deleted_details": True})


@scenario
def names_and_list(at: Recorder) -> None:
    at.api("STREAM.NAMES")
    at.api("STREAM.LIST")
    for name in ("C", "A", "B"):
        subjects = [f"{name.lower()}.>"]
        at.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects}, is_quiet=True)
    at.api("STREAM.NAMES")
    at.api("STREAM.NAMES", {"offset": 1})
    at.api("STREAM.NAMES", {"offset": 10})
    at.api("STREAM.NAMES", {"offset": -1})
    at.api("STREAM.NAMES", {"subject": "b.x"})
    at.api("STREAM.NAMES", {"subject": "*.x"})
    at.api("STREAM.NAMES", {"subject": "none"})
    at.api("STREAM.LIST", {"subject": "a.>"})
    at.api("STREAM.LIST", {"offset": 2})
    at.api("STREAM.LIST", {"zzz": 2})
    at.api("STREAM.NAMES", b"garbage")


@scenario
def delete(at: Recorder) -> None:
    at.api("STREAM.DELETE.S")
    at.api("STREAM.CREATE.S", BASE)
    at.fill("s.a")
    at.api("STREAM.DELETE.S", {"x": 1})
    at.api("STREAM.DELETE.S", {})
    at.api("STREAM.INFO.S")
    at.pub("s.a")
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.INFO.S")
    at.pub("s.a")


PURGE: dict[str, Any] = {
    "all": None,
    "empty_object": {},
    "filter": {"filter": "s.a"},
    "filter_wildcard": {"filter": "s.*"},
    "filter_none": {"filter": "zzz"},
    "seq": {"seq": 4},
    "seq_beyond": {"seq": 100},
    "keep": {"keep": 2},
    "keep_all": {"keep": 100},
    "filter_seq": {"filter": "s.a", "seq": 4},
    "filter_keep": {"filter": "s.a", "keep": 1},
    "seq_and_keep": {"seq": 2, "keep": 1},
    "garbage": b"garbage",
    "bad_json": b"{garbage",
    "unknown_field": {"zzz": 1},
    "negative": {"seq": -1},
}


def _purge(body: Any) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", BASE, is_quiet=True)
        at.fill("s.a", "s.b", "s.a", "s.b", "s.a", "s.c.d")
        at.api("STREAM.PURGE.S", body)
        at.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
        at.pub("s.a")

    return run


for _key, _purged in PURGE.items():
    add(f"streams.purge_{_key}", _purge(_purged))


@scenario
def purge_refused(at: Recorder) -> None:
    at.api("STREAM.PURGE.S")
    at.api("STREAM.CREATE.S", BASE | {"deny_purge": True, "deny_delete": True}, is_quiet=True)
    at.fill("s.a", "s.b")
    at.api("STREAM.PURGE.S")
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.api("STREAM.UPDATE.S", BASE | {"deny_purge": True, "deny_delete": True, "sealed": True})
    at.api("STREAM.PURGE.S")
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})


def _purge(body: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", BASE)
        at.fill("s.a", "s.b", "s.a")
        at.api("STREAM.PURGE.S", body)
        at.api("STREAM.INFO.S", {"deleted_details": True})

    return run


for _number, _body in enumerate(
    (
        {"seq": 0},
        {"seq": 1},
        {"seq": 1, "filter": "s.a"},
        {"seq": 1, "filter": ">"},
        {"seq": 1, "keep": 1},
        {"seq": 3, "filter": "s.*"},
        {"seq": 4},
        {"keep": 5},
    )
):
    add(f"streams.purge_below_{_number}", _purge(_body))


@scenario
def purge_filter_beyond_the_end(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE)
    at.fill("s.a", "s.b", "s.a")
    at.api("STREAM.PURGE.S", {"filter": "s.b", "seq": 9})
    at.api("STREAM.INFO.S", {"deleted_details": True})


@scenario
def purge_empty_and_refill(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE)
    at.api("STREAM.PURGE.S")
    at.api("STREAM.INFO.S")
    at.fill("s.a", "s.a")
    at.api("STREAM.PURGE.S")
    at.api("STREAM.INFO.S")
    at.api("STREAM.PURGE.S", {"seq": 10})
    at.api("STREAM.INFO.S")
    at.pub("s.a")
    at.api("STREAM.INFO.S")


@scenario
def first_seq_state(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE | {"first_seq": 10})
    at.pub("s.a")
    at.api("STREAM.INFO.S")


@scenario
def required_api_level(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE, headers={"Nats-Required-Api-Level": "99"})
    at.api("STREAM.CREATE.S", BASE, headers={"Nats-Required-Api-Level": "x"})
    at.api("STREAM.CREATE.S", BASE, headers={"Nats-Required-Api-Level": "1"})
    at.api("STREAM.INFO.S", headers={"Nats-Required-Api-Level": "99"})


@scenario
def snapshots_with_and_without_consumers(at: Recorder) -> None:
    """Of each archive which consumers and how many messages it has: times are each server's."""
    at.api("STREAM.CREATE.S", BASE, is_quiet=True)
    at.fill("s.a", "s.b")
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    body = {"stream_name": "S", "config": consumer}
    at.api("CONSUMER.CREATE.S.C", body, is_quiet=True)
    options = ({}, {"no_consumers": True}, {"jsck": True, "chunk_size": 5000})
    for number, asked in enumerate(options):
        subject = f"snapshot.{number}"
        sid = at.wire.subscribe(subject)
        at.api("STREAM.SNAPSHOT.S", {"deliver_subject": subject, **asked})
        reader = ArchiveReader()
        records: list[Record] = []
        while piece := at.wire.next(ANSWER_S).payload:
            records += reader.feed(piece)
        records += reader.finish()
        at.note("consumers", [each.name for each in records if isinstance(each, ArchivedConsumer)])
        messages = [each.rows for each in records if isinstance(each, ArchivedMessages)]
        at.note("messages", sum(map(len, messages)))
        at.wire.unsubscribe(sid)


@scenario
def standalone_cluster_calls(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", BASE, is_quiet=True)
    at.api("STREAM.LEADER.STEPDOWN.S")
    at.api("STREAM.PEER.REMOVE.S", {"peer": "x"})
    at.api("STREAM.PEER.EVACUATE.S", {"peer": "x"})
    at.api("STREAM.CANCEL_MOVE.S")
    at.api("CONSUMER.LEADER.STEPDOWN.S.C")
    at.api("CONSUMER.PEER.REMOVE.S.C", {"peer": "x"})
    at.api("CONSUMER.PEER.EVACUATE.S.C", {"peer": "x"})
    for subject in ("META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.A",
                    "ACCOUNT.STREAM.MOVE.A.S", "STREAM.TEMPLATE.CREATE.S"):  # fmt: skip
        at.note_frames(subject, at.wire.ask(f"$JS.API.{subject}", b"{}", within_s=0.3))
