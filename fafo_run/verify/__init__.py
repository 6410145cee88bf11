"""The proof: the prefix came from the cache, and nothing is lost or doubled. Reads, and changes nothing."""
