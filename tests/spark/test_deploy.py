"""The jobs on a standalone Spark cluster of one master and two workers, by spark-submit."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.export.export_ledger import Ledger
from spark_jobs.export.files import LocalFiles
from spark_jobs.jobs.package import package
from spark_jobs.session import java_home
from tests.spark.conftest import StartServer
from tests.spark.daemons import standalone, submit

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

COUNT = 26_000
STATS_TASKS_MAX = 30

PROGRAM = """
import sys
import spark_jobs
from spark_jobs.audit import audit_job as audit
from spark_jobs.jobs import diff
from spark_jobs.export import export_job as export
from spark_jobs.jobs import stats
from spark_jobs.jobs.command import register
from spark_jobs.session import session

zipped, url, files, target = sys.argv[1:]
assert "streamd-spark.zip" in spark_jobs.__file__, spark_jobs.__file__
spark = session("several jobs")
register(spark)
rows = spark.range(2000).selectExpr("concat('new.', id % 7) subject", "cast(id as string) payload")
rows.write.format("streamd").mode("append").options(
    servers=url, stream="NEW", jobId="many", prepareStream="true"
).save()
stream = ["--stream", "ORDERS", "--quiet", "--debug"]
online = [*stream, "--servers", url]


def tasks_of_stats():
    # As Spark is set by itself: each shuffle would make 200 tasks.
    parts = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.unset("spark.sql.shuffle.partitions")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    status = stats.main(online)
    jobs = map(tracker.getJobInfo, set(tracker.getJobIdsForGroup()) - before)
    stages = map(tracker.getStageInfo, {stage for job in jobs for stage in job.stageIds})
    count = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    spark.conf.set("spark.sql.shuffle.partitions", parts)
    return status, count


status, task_count = tasks_of_stats()
print("TASKS", task_count)
statuses = [
    export.main([*online, "--to", target, "--partition-by", "subject:2", "--verify"]),
    status,
    diff.main([*stream, "--left-servers", url, "--right-path", files]),
    audit.main(["--data", files, "--quiet", "--debug"]),
]
print("STATUSES", statuses)
sys.exit(max(statuses))
"""


def test_jobs_run_on_a_cluster_from_the_zip_alone(
    start_server: StartServer, tmp_path: Path
) -> None:
    """One application writes, exports, counts, compares and audits; both workers take part."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if java_home() is None:
        pytest.skip("no Java: make spark")
    server = start_server()
    server.create_stream("ORDERS", allow_direct=True)
    server.publish((f"orders.{n % 5}", b"payload %d" % n) for n in range(COUNT))
    server.create_stream("NEW", allow_direct=True)
    zipped = package(tmp_path / "dist")
    target = tmp_path / "out"
    program = tmp_path / "several.py"
    program.write_text(PROGRAM)
    with standalone(tmp_path) as url:
        done = submit(
            *(tmp_path, url, "--py-files", str(zipped), str(program)),
            *(str(zipped), server.url, str(server.store_dir), str(target)),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"verified: {COUNT:,} rows are equal" in done.stdout
    assert "STATUSES [0, 0, 0, 0]" in done.stdout
    task_count = int(done.stdout.partition("TASKS ")[2].split()[0])
    assert 0 < task_count <= STATS_TASKS_MAX
    ledger = Ledger.open(LocalFiles(target))
    ledger.check_files()
    assert (ledger.rows, len(ledger.live)) == (COUNT, 5)
    for worker in ("w0", "w1"):
        assert list((tmp_path / worker).glob("app-*/*/stderr")), f"{worker} ran no executor"
    found = server.api("STREAM.INFO.NEW", {"subjects_filter": "new.*"})["state"]
    assert sum(found["subjects"].values()) == 2000
