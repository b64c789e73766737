"""The jobs on a standalone Spark cluster of one master and two workers, by spark-submit."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.export_files import LocalFiles
from spark_jobs.export_ledger import Ledger
from spark_jobs.package import package
from spark_jobs.session import java_home
from tests.spark.conftest import StartServer
from tests.spark.daemons import standalone, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MANY = """
import sys
from spark_jobs import diff, export, ingest, stats
import spark_jobs

assert spark_jobs.__file__.startswith(sys.argv[1]) or ".zip" in spark_jobs.__file__, spark_jobs
url, files, target = sys.argv[2:]
online = ["--servers", url, "--quiet", "--debug"]
made = [
    ingest.main([files, "--format", "json", "--stream", "NEW", "--subject-template", "new.{n}",
                 "--id-columns", "n", *online]),
    stats.main(["--stream", "NEW", *online]),
    export.main(["--stream", "NEW", "--to", target, "--verify", *online]),
    diff.main(["--left-stream", "NEW", "--right-stream", "NEW", "--left-servers", url,
               "--right-servers", url.replace("nats://", ""), "--quiet", "--debug"]),
]
print("STATUSES", made)
sys.exit(max(made))
"""


def test_jobs_run_on_a_cluster_from_the_zip_alone(
    start_server: StartServer, tmp_path: Path
) -> None:
    """export by its program, then several jobs in one application; both workers take part."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if java_home() is None:
        pytest.skip("no Java: pip install 'streamd[java]'")
    server = start_server()
    server.create_stream("ORDERS", allow_direct=True)
    server.publish((f"orders.{n % 5}", b"payload %d" % n) for n in range(5000))
    server.create_stream("NEW", allow_direct=True)
    zipped = package(tmp_path / "dist")
    program = zipped.with_name("streamd-spark.py")
    target = tmp_path / "out"
    with standalone(tmp_path) as url:
        done = submit(
            *(tmp_path, url, "--py-files", str(zipped), str(program), "export"),
            *("--servers", server.url, "--stream", "ORDERS", "--to", str(target)),
            *("--partition-by", "subject:2", "--verify", "--debug"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "verified: 5,000 rows are equal" in done.stdout
        ledger = Ledger.open(LocalFiles(target))
        ledger.check_files()
        assert (ledger.rows, len(ledger.live)) == (5000, 5)
        for worker in ("w0", "w1"):
            assert list((tmp_path / worker).glob("app-*/*/stderr")), f"{worker} ran no executor"
        source = tmp_path / "new.json"
        source.write_text("".join(f'{{"n": {n}, "text": "row {n}"}}\n' for n in range(2000)))
        many = tmp_path / "many.py"
        many.write_text(MANY)
        done = submit(
            *(tmp_path, url, "--py-files", str(zipped), str(many)),
            *(str(zipped), server.url, str(source), str(tmp_path / "out2")),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "STATUSES [0, 0, 0, 0]" in done.stdout
    assert server.state("NEW")["messages"] >= 2000
