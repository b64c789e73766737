"""Benchmarks: our server and a real nats-server under one load generator, side by side."""
