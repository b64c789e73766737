"""docs/COMPATIBILITY.md: generated from the code, nats-server's tables and recorded comparisons."""
