"""Tests of the Spark data source and jobs, with real servers and one local Spark session."""
