"""The operators of a chain: each turns streams of record batches into one stream."""
