"""The configuration grammar: values, places of errors, variables, includes, digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamd.config import grammar
from streamd.errors import ConfigError
from streamd.limits import CONFIG_DEPTH_MAX


def plain(text: str, **environ: str) -> Any:
    return grammar.parse(text, "t.conf", environ=environ).plain()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1", {"a": 1}),
        ("a = 1", {"a": 1}),
        ("a 1", {"a": 1}),
        ("a: 1; b: 2, c: 3", {"a": 1, "b": 2, "c": 3}),
        ("a: -1", {"a": -1}),
        ("a: 1.5", {"a": 1.5}),
        ("a: 1k", {"a": 1000}),
        ("a: 1KB\nb: 2kib\nc: 3ki", {"a": 1024, "b": 2048, "c": 3072}),
        ("a: 2MB b", ConfigError),
        ("a: 1g\nb: 1GB\nc: 1TiB", {"a": 10**9, "b": 2**30, "c": 2**40}),
        ("a: true\nb: YES\nc: On\nd: off\ne: no", dict(zip("abcde", (1, 1, 1, 0, 0), strict=True))),
        ("a: n\nb: y\nc: t\nd: f", {"a": "n", "b": "y", "c": "t", "d": "f"}),
        ("a: 'x y'", {"a": "x y"}),
        ('a: "x\\ty\\x41\\""', {"a": 'x\tyA"'}),
        ("a: nats://localhost:4222", {"a": "nats://localhost:4222"}),
        ("a: 127.0.0.1:4222", {"a": "127.0.0.1:4222"}),
        ("a: 2020-01-02T03:04:05Z", {"a": "2020-01-02T03:04:05Z"}),
        ("a { b: 1 }", {"a": {"b": 1}}),
        ("a { b: 1, c: 2 }", {"a": {"b": 1, "c": 2}}),
        ("a{b:1}", {"a": {"b": 1}}),
        ("a\n{\n b 1\n}\n", {"a": {"b": 1}}),
        ("a: [1, 2\n 3\n]", {"a": [1, 2, 3]}),
        ("a [ x\n y ]", {"a": ["x", "y"]}),
        ("a: [{b: 1} {c: 2}]", ConfigError),
        ("a: [{b: 1}, {c: 2}]", {"a": [{"b": 1}, {"c": 2}]}),
        ("# all\na: 1 # end\n// more\nb: 2 // end", {"a": 1, "b": 2}),
        ('{"a": 1, "b": {"c": [true, "x"]}}', {"a": 1, "b": {"c": [True, "x"]}}),
        ("a: 1\na: 2", {"a": 2}),
        ("a: (\n x\n y\n)\n", {"a": "\n x\n y\n"}),
        ("'a b': 1\n\"c\": 2", {"a b": 1, "c": 2}),
        ("", {}),
        ("a: $2a$11$UP3xizk94sWF9SHF/wkklOf", {"a": "$2a$11$UP3xizk94sWF9SHF/wkklOf"}),
        ("include: 5", {"include": 5}),
    ],
)
def test_values_read_as_nats_server_reads_them(text: str, wanted: Any) -> None:
    """One line per form of the grammar."""
    if wanted is ConfigError:
        with pytest.raises(ConfigError):
            plain(text)
    else:
        assert plain(text) == wanted


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a { b: 1\n", (2, 1), "Unexpected EOF processing map"),
        ("a: [1, 2\n", (2, 1), "Unexpected EOF processing array"),
        ('\na: "x\n', (3, 1), "Unexpected EOF"),
        ("a: 1\nb: 42 {\n", (2, 7), "Expected a top-level value to end"),
        ("a: \n5\n", (1, 4), "Expected value but found new line"),
        ('a: "\\q"', (1, 5), "Invalid escape character 'q'"),
        ("a: $NOPE", (1, 4), "variable reference for 'NOPE' on line 1 can not be found"),
        ("a {\n b: 1 }\n}\nc: 1", (3, 1), "Unexpected '}': no block is open"),
        ("a: 1\n= 5", (2, 1), "Unexpected key separator '='"),
        ("a", (1, 2), "has no value"),
        ("a: [,1]", (1, 5), "Unexpected array value terminator"),
        ("a: [1,,2]", (1, 7), "Unexpected array value terminator"),
        ("a: [1 2]", (1, 7), "Expected an array value terminator"),
        ("a: {b: 1 c: 2}", (1, 10), "Expected a map value terminator"),
        ('a: "\\x4g"', (1, 5), "Expected two hexadecimal digits after"),
        ("a: (\nb", (2, 2), "Unexpected EOF processing block"),
        ('"a\n: 1', (1, 1), "Unexpected EOF in a quoted key"),
        ("include 5", (1, 9), "include needs a file name"),
    ],
)
def test_errors_name_file_line_and_column(text: str, place: tuple[int, int], words: str) -> None:
    """A mistake is pointed at exactly."""
    with pytest.raises(ConfigError) as caught:
        plain(text)
    assert (caught.value.file, caught.value.line, caught.value.col) == ("t.conf", *place)
    assert words in str(caught.value)


def test_errors_of_syntax_begin_as_tools_expect_them() -> None:
    """`Parse error on line N:` first, our file:line:column behind it."""
    with pytest.raises(ConfigError) as caught:
        plain("a: 1\nb: [1,,2]")
    assert str(caught.value) == (
        "Parse error on line 2: 'Unexpected array value terminator ','.' (t.conf:2:7)"
    )


def test_variables_come_from_enclosing_scopes_then_the_environment() -> None:
    """The innermost definition wins; an environment value is parsed as a value."""
    text = "X: 1\na { X: 2, b { c: $X } }\nd: $X\ne: $FROM_ENV\nf: [$X, $X]"
    assert plain(text, FROM_ENV="{g: true}") == {
        "X": 1,
        "a": {"X": 2, "b": {"c": 2}},
        "d": 1,
        "e": {"g": True},
        "f": [1, 1],
    }


def test_variables_that_refer_to_themselves_are_refused() -> None:
    """A cycle through the environment ends in an error, not in recursion."""
    with pytest.raises(ConfigError, match="cycle"):
        plain("a: $X", X="$Y", Y="$X")


def test_includes_merge_relative_to_the_including_file(tmp_path: Path) -> None:
    """An included file sees the variables before it and adds keys to the open block."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.conf").write_text("include two.conf\nx: $V")
    (tmp_path / "sub" / "two.conf").write_text("y: 2")
    main = tmp_path / "main.conf"
    main.write_text("V: 7\na { include 'sub/one.conf'\n z: 3 }\n")
    assert grammar.parse_file(str(main)).plain() == {"V": 7, "a": {"x": 7, "y": 2, "z": 3}}


def test_a_missing_include_is_an_error_at_its_place(tmp_path: Path) -> None:
    """Neither skipped nor a traceback."""
    main = tmp_path / "main.conf"
    main.write_text("a: 1\ninclude 'gone.conf'\n")
    with pytest.raises(ConfigError, match=r"main.conf:2:9: error parsing include file 'gone.conf'"):
        grammar.parse_file(str(main))


def test_an_included_file_is_named_without_detours(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_text("include ./one.conf\n")
    (tmp_path / "one.conf").write_text("a: [")
    with pytest.raises(ConfigError) as caught:
        grammar.parse_file(str(main))
    assert str(tmp_path / "one.conf") in str(caught.value)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    """Depth is bounded."""
    main = tmp_path / "main.conf"
    main.write_text("include main.conf\n")
    with pytest.raises(ConfigError, match="nest deeper"):
        grammar.parse_file(str(main))


def test_deep_nesting_is_refused_before_the_stack_is() -> None:
    """A hostile file gives an error, not a RecursionError."""
    for opening in ("[", "{b: "):
        with pytest.raises(ConfigError, match="nest deeper"):
            plain("a: " + opening * 5000)


def test_blocks_side_by_side_are_not_deep() -> None:
    many = 2 * CONFIG_DEPTH_MAX
    assert plain("a: [" + "[1], {b: 1}, " * many + "]") == {"a": [[1], {"b": 1}] * many}


def test_variables_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMD_TEST_PORT", "4223")
    assert grammar.parse("port: $STREAMD_TEST_PORT").plain() == {"port": 4223}


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    """As with nats-server: an empty configuration is most likely a mistake."""
    main = tmp_path / "main.conf"
    main.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="config has no values or is empty"):
        grammar.parse_file(str(main))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A: 5\nport: $A\n", "ef2feeb21a62c38cc5f8718d85d045f6877e32539013972a823828a7f7e9f5c3"),
        ("max_payload: 5mib\n", "7978e2af4a0dce244e19a534fe9ac4f1d928aacc4137e35bf88334ba6dde98aa"),
        ("port 5 }\n", "31e700d8099c9ba65abbb6651b7440e19fb67478741216737098f7b78467e737"),
        (
            'authorization { token: "é" }\n',
            "d86ca1344620d17cc69cf977a4b8d0acb531753ca4190ad5ab1862ff19f6670d",
        ),
        ("max_conn: $FIVE\n", "216c352e3ec6d93e4dc7b75cf952859d4173a0ee4ce353f64baa9d5fa32c80cd"),
    ],
)
def test_digests_equal_nats_servers(text: str, wanted: str) -> None:
    """Taken from `nats-server -t` 2.15.1: whoever compares digests may compare across both."""
    assert grammar.digest(grammar.parse(text, environ={"FIVE": "5"})) == f"sha256:{wanted}"


def test_an_include_without_a_name_is_an_error_with_its_place():
    """The text ends where the name should be; that once was an IndexError."""
    with pytest.raises(ConfigError, match="end of the file"):
        grammar.parse("include ")
