"""Membership in consumer groups, committed offsets, and who reads what."""
