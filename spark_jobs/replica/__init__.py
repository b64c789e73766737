"""Read-only views of data directories, made with the server's own storage code."""
