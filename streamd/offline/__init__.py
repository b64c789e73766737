"""Read-only access to data directories, by the server's own storage code."""
