"""`streamctl stream` at three nodes: what is shown, what is refused, what is never done unasked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.e2e.ctl.conftest import Ctl, check_golden, run_ctl

pytestmark = pytest.mark.slow


def test_a_stream_is_made_shown_changed_and_removed(ctl: Ctl) -> None:
    """Tables of a fixed width, and the server's own documents as JSON."""
    made = ctl("stream", "add", "GOLD", "--subject", "gold.>", "--replicas", "3", "--max-age", "7d")
    assert made.status == 0, made.err
    assert "subjects:" in made.out and "gold.>" in made.out and "3 copies" in made.out
    again = ctl("stream", "add", "GOLD", "--subject", "gold.>", "--replicas", "1")
    assert again.status == 1
    assert "is there already, with another configuration" in again.err
    assert "try: streamctl stream edit GOLD" in again.err

    found = ctl("stream", "info", "GOLD", "--output", "json").data
    assert found["config"]["max_age"] == 7 * 86_400 * 10**9
    assert len(found["cluster"]["replicas"]) == 2
    rows = ctl("stream", "list", "--subject", "gold.*", "-o", "json").data
    assert [row["name"] for row in rows] == ["GOLD"]
    assert ctl("stream", "list", "--names", "--subject", "gold.x").out == "GOLD\n"

    edited = ctl("stream", "edit", "GOLD", "--description", "of gold", "--set", "allow_direct=true")
    assert edited.status == 0, edited.err
    assert 'description: null -> "of gold"' in edited.err
    after = ctl("stream", "info", "GOLD", "-o", "json").data["config"]
    assert (after["description"], after["allow_direct"]) == ("of gold", True)
    assert after["max_age"] == 7 * 86_400 * 10**9

    unasked = ctl("stream", "delete", "GOLD")
    assert unasked.status == 2
    assert "nobody was asked, so nothing was done" in unasked.err
    assert ctl("stream", "info", "GOLD").status == 0
    assert ctl("stream", "delete", "GOLD", "--yes").status == 0
    gone = ctl("stream", "info", "GOLD")
    assert gone.status == 1
    assert gone.err == "streamctl: no stream 'GOLD'\ntry: streamctl stream list\n"


def test_the_list_is_a_table_of_fixed_width(ctl: Ctl) -> None:
    ctl("stream", "add", "TABLE", "--subject", "table.a", "--subject", "table.b")
    found = ctl("stream", "list", "--subject", "table.a")
    leader = ctl("stream", "info", "TABLE", "-o", "json").data["cluster"]["leader"]
    check_golden("stream_list", found.golden.replace(leader, "nX"))
    ctl("stream", "delete", "TABLE", "-y")


def test_words_that_can_not_be_meant_are_refused(ctl: Ctl, tmp_path: Path) -> None:
    """With status 2, before a server is asked to change anything."""
    ctl("stream", "add", "WORDS", "--subject", "words")
    for words, told in (
        (["purge", "WORDS", "--subject", "", "--yes"], "--subject '' is no subject"),
        (["purge", "WORDS", "--seq", "2", "--keep", "1", "--yes"], "exclude each other"),
        (["get", "WORDS"], "name one message"),
        (["info", "a.b"], "is no name of a stream"),
        (["edit", "WORDS", "--max-bytes", "10 apples"], "'10 apples' is no size"),
        (["edit", "WORDS", "--max-age", "soon"], "'soon' is no duration"),
        (["edit", "WORDS", "--set", "max_msgs"], "write FIELD=JSON"),
        (["edit", "WORDS", "--set", "max_msgs=many"], "is no JSON"),
        (["seal", "WORDS"], "nobody was asked"),
        (["purge", "WORDS"], "nobody was asked"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ):
        found = ctl("stream", *words)
        assert found.status == 2, (words, found)
        assert told in found.err, (words, found.err)
    ctl("stream", "delete", "WORDS", "-y")


def test_no_server_is_told_with_the_next_step(own_home: Path) -> None:
    found = run_ctl("--server", "nats://127.0.0.1:9", "stream", "list")
    assert found.status == 1
    assert "no connection to nats://127.0.0.1:9" in found.err
    assert "try: --server, NATS_URL" in found.err


def test_yaml_says_what_json_says(ctl: Ctl) -> None:
    ctl("stream", "add", "YAML", "--subject", "yaml", "--description", "a: b # c")
    as_json = ctl("stream", "info", "YAML", "-o", "json").data
    as_yaml = yaml.safe_load(ctl("stream", "info", "YAML", "-o", "yaml").out)
    assert as_yaml["config"] == as_json["config"]
    assert as_yaml["config"]["description"] == "a: b # c"


def test_descriptions_are_laid_out(ctl: Ctl) -> None:
    """Golden outputs of info, with the names of servers as one sign."""
    ctl("stream", "add", "LOOK", "--subject", "look.>", "--max-bytes", "1GiB", "--replicas", "3")
    shown = re.sub(r"\bn[123]\b", "nX", ctl("stream", "info", "LOOK").golden)
    check_golden("stream_info", re.sub(r"nX, [\w ,]+? entries", "nX, STATE", shown))
    ctl("consumer", "add", "LOOK", "eye", "--filter", "look.a", "--description", "sees a")
    shown = re.sub(r"\bn[123]\b", "nX", ctl("consumer", "info", "LOOK", "eye").golden)
    check_golden("consumer_info", shown)
    report = re.sub(r"\bn[123]\b", "nX", ctl("stream", "subjects", "LOOK").golden)
    check_golden("stream_subjects_none", report)


def test_a_configuration_of_another_stream_is_taken_as_it_is(ctl: Ctl, tmp_path: Path) -> None:
    """An answer of `info` as --config makes a stream of the same shape under another name."""
    ctl("stream", "add", "FROM", "--subject", "from.x", "--max-msgs", "7", "--deny-delete")
    path = tmp_path / "from.json"
    path.write_text(ctl("stream", "info", "FROM", "-o", "json").out)
    words = ["--config", str(path), "--subject", "to.x"]
    assert ctl("stream", "add", "TO", *words).status == 0
    config = ctl("stream", "info", "TO", "-o", "json").data["config"]
    assert (config["max_msgs"], config["deny_delete"], config["subjects"]) == (7, True, ["to.x"])
