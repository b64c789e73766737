"""The sink of format "streamd": rows to messages, exactly once or at least once."""
