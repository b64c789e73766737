"""The source of format "streamd": batch and streaming reads of servers and files."""
