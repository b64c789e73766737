"""streamd: a durable, self-verifying stream store that NATS clients talk to unchanged."""

__version__ = "0.1.0"
NATS_LEVEL = "2.14.3"
"""The nats-server release whose client protocol and JetStream API this server speaks."""
API_LEVEL = 4
"""JetStream API level that goes with `NATS_LEVEL`."""
