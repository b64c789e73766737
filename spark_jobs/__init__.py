"""Spark jobs and the Spark data source of streamd: `spark.read.format("streamd")`."""
