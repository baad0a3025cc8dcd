"""Consumer groups: members, generations and committed offsets, kept in `__consumer_offsets`."""
