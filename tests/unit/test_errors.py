"""The error table is the published one, and its kinds fill in their templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamd import errors
from streamd.errors import ConfigError, JsError, JsErrorKind

_TABLE = Path(__file__).parents[3] / "shared/reference/errors.json"


def kinds() -> list[JsErrorKind]:
    return [kind for kind in vars(errors).values() if isinstance(kind, JsErrorKind)]


@pytest.mark.skipif(not _TABLE.exists(), reason="errors.json is not beside this checkout")
def test_table_is_the_published_one() -> None:
    published = [
        (row["code"], row["error_code"], row["description"])
        for row in json.loads(_TABLE.read_text())
    ]
    assert sorted((k.code, k.err_code, k.template) for k in kinds()) == sorted(published)


def test_err_codes_are_unique() -> None:
    codes = [kind.err_code for kind in kinds()]
    assert len(codes) == len(set(codes)) > 200


def test_kind_makes_errors() -> None:
    error = errors.STREAM_WRONG_LAST_SEQUENCE(seq=5)
    assert isinstance(error, JsError)
    assert error.as_json() == {
        "code": 400,
        "err_code": 10071,
        "description": "wrong last sequence: 5",
    }
    assert errors.STREAM_WRONG_LAST_SEQUENCE.matches(error)
    assert not errors.STREAM_NOT_FOUND.matches(error)
    assert not errors.STREAM_NOT_FOUND.matches(None)
    assert error == errors.STREAM_WRONG_LAST_SEQUENCE(seq=5)
    assert error != errors.STREAM_WRONG_LAST_SEQUENCE(seq=6)


def test_template_fields_are_taken_as_they_are() -> None:
    text = errors.INVALID_JSON(err='unknown field "{seq}"').description
    assert text == 'invalid JSON: unknown field "{seq}"'
    with pytest.raises(KeyError):
        errors.STREAM_WRONG_LAST_SEQUENCE()


def test_config_error_names_its_place() -> None:
    assert str(ConfigError("unknown field", "a.conf", 3, 7)) == "a.conf:3:7: unknown field"
    assert str(ConfigError("bad flag")) == "bad flag"
