"""Partitions on several nodes: who leads, who is in sync, what is committed, and how followers get the records.

Sources: Partition, ReplicaManager, AbstractFetcherThread; KIP-101, KIP-227, KIP-279, KIP-595 (truncation on fetch), KIP-903.
"""
