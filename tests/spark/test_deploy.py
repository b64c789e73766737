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
import spark_jobs
from spark_jobs import audit, diff, stats
from spark_jobs.jobs import register
from spark_jobs.session import session

zipped, url, files = sys.argv[1:]
assert spark_jobs.__file__.startswith(zipped) or "streamd-spark.zip" in spark_jobs.__file__
spark = session("many")
register(spark)
rows = spark.range(2000).selectExpr("concat('new.', id % 7) subject", "cast(id as string) payload")
rows.write.format("streamd").mode("append").options(
    servers=url, stream="NEW", jobId="many", prepareStream="true"
).save()
online = ["--servers", url, "--quiet", "--debug"]
statuses = [
    stats.main(["--stream", "ORDERS", *online]),
    diff.main(["--stream", "ORDERS", "--left-servers", url, "--right-path", files,
               "--quiet", "--debug"]),
    audit.main(["--data", files, "--quiet", "--debug"]),
]
print("STATUSES", statuses)
sys.exit(max(statuses))
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
        many = tmp_path / "many.py"
        many.write_text(MANY)
        done = submit(
            *(tmp_path, url, "--py-files", str(zipped), str(many)),
            *(str(zipped), server.url, str(server.store_dir)),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "STATUSES [0, 0, 0]" in done.stdout
    found = server.api("STREAM.INFO.NEW", {"subjects_filter": "new.*"})["state"]
    assert sum(found["subjects"].values()) == 2000
