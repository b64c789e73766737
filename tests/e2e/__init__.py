"""Real processes, real client libraries."""
