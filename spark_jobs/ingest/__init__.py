"""The ingest of files into a stream, and of the records in them that do not parse."""
