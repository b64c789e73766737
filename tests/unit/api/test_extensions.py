"""Settings and answers that no NATS server has: asked for, checked, and not there otherwise."""

from __future__ import annotations

from typing import Any

from streamd.machine import commands
from tests.unit.api.bed import Bed

LAG = b"NATS/1.0\r\nNats-Consumer-Lag: true\r\n\r\n"
SECOND_NS = 10**9


def consumer(bed: Bed, **config: Any) -> dict[str, Any]:
    body = {"stream_name": "T", "config": {"durable_name": "C", "ack_policy": "explicit", **config}}
    return bed.ask("CONSUMER.CREATE.T.C", body)


def test_the_lag_in_time_is_told_to_who_asks() -> None:
    bed = Bed()
    stream = bed.make("T", subjects=["t.>"])
    for at in range(3):
        stream.store(f"t.{at}")  # one a second
    bed.node.clock.ns += SECOND_NS
    made = consumer(bed)
    uid = stream.machine.consumers["C"].uid
    assert "lag" not in made and "lag" not in bed.ask("CONSUMER.INFO.T.C")
    stream.apply([commands.DELIVERED, bed.node.clock.ns, uid, [(1, 1, 1, False)], 0])
    lag = bed.ask("CONSUMER.INFO.T.C", headers=LAG)["lag"]
    assert (lag["unprocessed_seq"], lag["unprocessed_age"]) == (1, 3 * SECOND_NS)
    assert (lag["undelivered_seq"], lag["undelivered_age"]) == (2, 2 * SECOND_NS)
    assert lag["undelivered_time"] == "2026-09-21T14:13:22Z"
    (listed,) = bed.ask("CONSUMER.LIST.T", headers=LAG)["consumers"]
    assert listed["lag"] == lag
    (plain,) = bed.ask("CONSUMER.LIST.T")["consumers"]
    assert "lag" not in plain
    stream.apply([commands.DELIVERED, bed.node.clock.ns, uid, [(2, 3, 2, False)], 0])
    stream.apply([commands.ACKED, bed.node.clock.ns, uid, [1, 2, 3]])
    assert bed.ask("CONSUMER.INFO.T.C", headers=LAG)["lag"] == {
        "unprocessed_age": 0, "undelivered_age": 0,
    }  # fmt: skip


def test_a_consumer_may_show_its_lag_and_dead_letters_to_all() -> None:
    bed = Bed()
    stream = bed.make("T", subjects=["t.>"])
    stream.store("t.1")
    metadata = {"streamd.lag": "true", "streamd.dead_letter": "dlq.t"}
    made = consumer(bed, metadata=metadata)
    assert made["lag"]["unprocessed_seq"] == 1
    assert made["dead_letters"] == {"subject": "dlq.t", "waiting": 0}
    uid = stream.machine.consumers["C"].uid
    stream.apply([commands.DELIVERED, bed.node.clock.ns, uid, [(1, 1, 1, False)], 0])
    stream.apply([commands.TERMED, bed.node.clock.ns, uid, [(1, "")]])
    assert bed.ask("CONSUMER.INFO.T.C")["dead_letters"] == {
        "subject": "dlq.t", "waiting": 1, "error": "no stream stores dlq.t",
    }  # fmt: skip


def test_settings_that_make_no_sense_are_refused_and_name_the_value() -> None:
    bed = Bed()
    bed.make("T", subjects=["t.>"])
    body: dict[str, Any] = {
        "stream_name": "T",
        "config": {"durable_name": "C", "ack_policy": "explicit"},
    }
    for key, value, word in (
        ("streamd.dead_letter", "dlq.*", "must be a subject without wildcards"),
        ("streamd.dead_letter", "$SYS.REQ", "must be a subject without wildcards"),
        ("streamd.max_ack_pending_per_subject", "0", "must be a number from 1 to 65536"),
    ):
        body["config"]["metadata"] = {key: value}
        code, text = bed.error("CONSUMER.CREATE.T.C", body)
        assert code == 10012 and word in text and f"'{value}'" in text
    body["config"]["metadata"] = {"streamd.dead_letter": "t.dead"}
    assert bed.error("CONSUMER.CREATE.T.C", body) == (
        10012, "dead letters on 't.dead' would be delivered to the consumer itself",
    )  # fmt: skip
    body["config"]["metadata"] = {"streamd.deadletter": "dlq.t"}
    code, text = bed.error("CONSUMER.CREATE.T.C", body)
    assert code == 10012 and text.startswith(
        "metadata streamd.deadletter is no setting of consumers; there are streamd.dead_letter, "
    )
    body["config"]["metadata"] = {"streamd.purpose": "lag"}  # as Spark queries note it
    made = bed.ask("CONSUMER.CREATE.T.C", body)
    assert made["config"]["metadata"]["streamd.purpose"] == "lag"
    metadata = {"streamd.producer_max": "5"}
    code, text = bed.error("STREAM.CREATE.X", {"name": "X", "metadata": metadata})
    assert code == 10052 and "streamd.producer_max is no setting of streams" in text
    metadata = {"streamd.producers_max": "many"}
    code, text = bed.error("STREAM.CREATE.X", {"name": "X", "metadata": metadata})
    assert code == 10052 and "from 1 to 100000, not 'many'" in text
