"""The files that spark-submit and Spark Connect need: the code as one zip, and a program to start.

    streamd-spark package --output dist
    spark-submit --master spark://host:7077 --py-files dist/streamd-spark.zip \\
        dist/streamd-spark.py export --stream ORDERS --to hdfs:///lake/orders

The zip holds `spark_jobs`, `pyspark_streamd` and `streamd`, no libraries: Python on the executors
needs numpy, pandas, pyarrow, crc32c and msgpack (docs/spark.md says how to bring them).
"""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from spark_jobs.jobs.command import EXIT_OK, JobError, job_parser, run_job

PACKAGES: Final = ("spark_jobs", "pyspark_streamd", "streamd")
ZIP_NAME: Final = "streamd-spark.zip"
PROGRAM_NAME: Final = "streamd-spark.py"
PROGRAM: Final = """# spark-submit --py-files streamd-spark.zip streamd-spark.py JOB ...

import sys

from spark_jobs.jobs.command import main

sys.exit(main())
"""
_STAMP: Final = (2020, 1, 1, 0, 0, 0)  # the same code makes the same bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("package", __doc__)
    parser.add_argument(
        "--output",
        default="dist",
        metavar="DIR",
        help="directory of the files (default: %(default)s)",
    )
    return parser


def _work(args: argparse.Namespace) -> int:
    made = package(Path(args.output))
    size = made.stat().st_size
    program = made.with_name(PROGRAM_NAME)
    print(f"{made} ({size:,} bytes) and {program}; next, for example:")
    print(f"  spark-submit --master MASTER --py-files {made} {program} stats --stream NAME")
    return EXIT_OK


def package(directory: Path) -> Path:
    """Write the zip and the program into `directory`; returns the zip's path.

    Raises JobError if the code runs from a zip itself.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "spark_jobs" / "jobs" / "package.py").is_file():
        raise JobError(f"the code is in {root}, not in a directory: it is packaged already")
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / ZIP_NAME
    partial = made.with_suffix(".tmp")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _sources(root):
            name = path.relative_to(root).as_posix()
            info = zipfile.ZipInfo(name, _STAMP)
            info.external_attr = 0o644 << 16
            archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    partial.replace(made)
    (directory / PROGRAM_NAME).write_text(PROGRAM)
    return made


def _sources(root: Path) -> Iterator[Path]:
    for package_name in PACKAGES:
        top = root / package_name
        if not top.is_dir():
            raise JobError(f"{top} is missing: this is no whole installation of streamd")
        for directory, names, files in os.walk(top):
            names.sort()
            for file in sorted(files):
                if file.endswith(".py"):
                    yield Path(directory, file)
