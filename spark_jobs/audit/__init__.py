"""The audit of data directories, backups and running nodes: damage, drift and loss."""
