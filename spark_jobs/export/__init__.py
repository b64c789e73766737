"""The export of a stream to partitioned Parquet, with a ledger of what is committed."""
