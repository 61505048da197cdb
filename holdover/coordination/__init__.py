"""Leader election and retrieval, epochs, failure detection, a worker's way to who leads."""
