"""A test mode for DAG authors: a fake cluster and bucket, held to the real ones by the contract suite."""
