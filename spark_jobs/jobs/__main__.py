"""`python -m spark_jobs.jobs JOB ...`: the command `streamd-spark`."""

import sys

from spark_jobs.jobs.command import main

sys.exit(main())
