"""The shuffle: partitions between tasks, as files, on the wire, and in the books."""
