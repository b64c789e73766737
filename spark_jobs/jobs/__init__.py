"""The command `streamd-spark` and the jobs that read or copy streams: `main`, `register`."""

from spark_jobs.jobs.command import main, register

__all__ = ["main", "register"]
