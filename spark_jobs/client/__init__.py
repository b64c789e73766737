"""A blocking NATS client for Spark's driver and tasks, and the facts of a stream."""
