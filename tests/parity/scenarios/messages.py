"""Reading and deleting single messages: STREAM.MSG.GET, STREAM.MSG.DELETE, DIRECT.GET."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario

SUBJECTS = ("s.a", "s.b", "s.a", "s.b.c", "s.a", "s.d")


def stream(at: Recorder, **config: Any) -> None:
    whole = {"name": "S", "subjects": ["s.>"], "allow_direct": True} | config
    at.api("STREAM.CREATE.S", whole, is_quiet=True)
    for number, subject in enumerate(SUBJECTS):
        headers = {"N": str(number)} if number % 2 else None
        at.pub(subject, b"body %d" % number, headers=headers, is_quiet=True)


GETS: dict[str, Any] = {
    "seq": {"seq": 2},
    "seq_headers": {"seq": 4},
    "seq_zero": {"seq": 0},
    "seq_beyond": {"seq": 100},
    "seq_negative": {"seq": -1},
    "last": {"last_by_subj": "s.a"},
    "last_wildcard": {"last_by_subj": "s.*"},
    "last_none": {"last_by_subj": "s.zzz"},
    "last_outside": {"last_by_subj": "other"},
    "last_invalid": {"last_by_subj": "s..a"},
    "next": {"next_by_subj": "s.a"},
    "next_from": {"next_by_subj": "s.a", "seq": 2},
    "next_beyond": {"next_by_subj": "s.a", "seq": 6},
    "next_wildcard": {"next_by_subj": "s.>", "seq": 4},
    "seq_and_last": {"seq": 1, "last_by_subj": "s.a"},
    "last_and_next": {"next_by_subj": "s.a", "last_by_subj": "s.a"},
    "start_time": {"start_time": "2020-01-01T00:00:00Z"},
    "start_time_future": {"start_time": "2120-01-01T00:00:00Z"},
    "start_time_and_seq": {"start_time": "2020-01-01T00:00:00Z", "seq": 1},
    "no_hdr": {"seq": 2, "no_hdr": True},
    "next_and_multi": {"next_by_subj": "s.a", "multi_last": ["s.b"]},
    "negative_batch": {"seq": 2, "batch": -1},
    "negative_bytes": {"seq": 2, "max_bytes": -1},
    "multi_null": {"multi_last": [None]},
    "blank": b" ",
    "two_documents": b"{}{}",
    "empty_object": {},
    "empty": None,
    "garbage": b"garbage",
    "unknown_field": {"seq": 1, "zzz": 1},
    "batch": {"seq": 1, "batch": 3},
    "batch_next": {"next_by_subj": "s.a", "batch": 10},
    "batch_from_seq": {"next_by_subj": "s.>", "seq": 3, "batch": 2},
    "batch_bytes": {"seq": 1, "batch": 10, "max_bytes": 40},
    "batch_none": {"next_by_subj": "s.zzz", "batch": 3},
    "batch_beyond": {"seq": 50, "batch": 3},
    "batch_last": {"last_by_subj": "s.a", "batch": 3},
    "batch_start_time": {"start_time": "2020-01-01T00:00:00Z", "batch": 2},
    "multi": {"multi_last": ["s.a", "s.b"]},
    "multi_wildcard": {"multi_last": ["s.>"]},
    "multi_batch": {"multi_last": ["s.>"], "batch": 2},
    "multi_batch_from": {"multi_last": ["s.>"], "batch": 2, "seq": 3},
    "multi_batch_negative": {"multi_last": ["s.>"], "batch": -1},
    "multi_up_to": {"multi_last": ["s.>"], "up_to_seq": 3},
    "both_up_to": {"seq": 1, "up_to_seq": 3, "up_to_time": "2120-01-01T00:00:00Z"},
    "only_both_up_to": {"up_to_seq": 3, "up_to_time": "2120-01-01T00:00:00Z"},
    "multi_none": {"multi_last": ["s.zzz"]},
    "multi_and_next": {"multi_last": ["s.a"], "next_by_subj": "s.a"},
    "multi_both_up_to": {"multi_last": ["s.a"], "up_to_seq": 3,
                         "up_to_time": "2120-01-01T00:00:00Z"},
    "multi_up_to_time": {"multi_last": ["s.>"], "up_to_time": "2120-01-01T00:00:00Z"},
}  # fmt: skip


def _get(body: Any) -> Any:
    def run(at: Recorder) -> None:
        stream(at)
        at.api("STREAM.MSG.GET.S", body)

    return run


def _direct(body: Any) -> Any:
    def run(at: Recorder) -> None:
        stream(at)
        at.direct("S", body)

    return run


for _key, _asked in GETS.items():
    add(f"messages.direct_{_key}", _direct(_asked))
    if not _key.startswith(("batch", "multi")):
        add(f"messages.get_{_key}", _get(_asked))


@scenario
def direct_by_subject(at: Recorder) -> None:
    stream(at)
    at.direct("S", subject="s.a")
    at.direct("S", subject="s.b.c")
    at.direct("S", subject="s.zzz")
    at.direct("S", {"no_hdr": True}, subject="s.a")
    at.direct("S", b"garbage", subject="s.a")
    for pattern in ("s.*", "s.>", ">", "*.a", "s.zzz.*", "*", "s.*.c"):
        at.direct("S", subject=pattern)
    at.direct("S", {"no_hdr": True}, subject="s.*")


@scenario
def direct_up_to_the_time_of_a_message(at: Recorder) -> None:
    """Of that very moment nothing is given."""
    stream(at)
    for seq in (1, 2, 3):
        time = at.api("STREAM.MSG.GET.S", {"seq": seq}, is_quiet=True)["message"]["time"]
        at.direct("S", {"multi_last": ["s.>"], "up_to_time": time})


@scenario
def direct_disabled(at: Recorder) -> None:
    stream(at, allow_direct=False)
    at.direct("S", {"seq": 1})
    at.direct("S", subject="s.a")
    at.direct("T", {"seq": 1})


@scenario
def direct_after_delete(at: Recorder) -> None:
    stream(at)
    at.api("STREAM.MSG.DELETE.S", {"seq": 5})
    at.direct("S", {"seq": 5})
    at.direct("S", subject="s.a")
    at.direct("S", {"next_by_subj": "s.a", "seq": 4})
    at.direct("S", {"seq": 1, "batch": 10})
    at.direct("S", {"multi_last": ["s.a"]})


@scenario
def get_missing_stream(at: Recorder) -> None:
    at.api("STREAM.MSG.GET.S", {"seq": 1})
    at.api("STREAM.MSG.GET.S", {"seq": 1, "batch": 2})
    at.api("STREAM.MSG.GET.S", {})
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})


@scenario
def get_on_empty(at: Recorder) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    at.api("STREAM.CREATE.S", config, is_quiet=True)
    at.api("STREAM.MSG.GET.S", {"seq": 1})
    at.api("STREAM.MSG.GET.S", {"last_by_subj": "s.a"})
    at.direct("S", {"seq": 1})
    at.direct("S", {"next_by_subj": "s.>"})


@scenario
def delete_messages(at: Recorder) -> None:
    stream(at)
    at.api("STREAM.MSG.DELETE.S", {"seq": 2})
    at.api("STREAM.MSG.DELETE.S", {"seq": 2})
    at.api("STREAM.MSG.DELETE.S", {"seq": 3, "no_erase": True})
    at.api("STREAM.MSG.DELETE.S", {"seq": 100})
    at.api("STREAM.MSG.DELETE.S", {"seq": 0})
    at.api("STREAM.MSG.DELETE.S", {})
    at.api("STREAM.MSG.DELETE.S")
    at.api("STREAM.MSG.DELETE.S", b"garbage")
    at.api("STREAM.MSG.DELETE.S", {"seq": 4, "zzz": 1})
    at.api("STREAM.MSG.GET.S", {"seq": 2})
    at.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})


@scenario
def delete_in_memory(at: Recorder) -> None:
    stream(at, storage="memory")
    for seq in (2, 2, 0, 1, 1, 100):
        at.api("STREAM.MSG.DELETE.S", {"seq": seq})


@scenario
def delete_all_one_by_one(at: Recorder) -> None:
    stream(at)
    for seq in (1, 6, 2, 5, 3, 4):
        at.api("STREAM.MSG.DELETE.S", {"seq": seq})
        at.api("STREAM.INFO.S", {"deleted_details": True})
    at.pub("s.a")


@scenario
def direct_required_level(at: Recorder) -> None:
    stream(at)
    frames = at.wire.ask(
        "$JS.API.DIRECT.GET.S", b'{"seq":1}', headers={"Nats-Required-Api-Level": "99"}
    )
    at.note_frames("level", frames)
