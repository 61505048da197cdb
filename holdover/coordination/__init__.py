"""Leader election and retrieval, epochs, failure detection."""
