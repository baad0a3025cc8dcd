"""Partitions on several nodes: who leads, who is in sync, what is committed, and how followers get the records.

`partition` and `isr` decide, without any I/O, and `shared` carries out; `alter_partition` is what is asked of the controller. Sources:
Partition, ReplicaManager, AlterPartitionManager, AbstractFetcherThread; KIP-101, KIP-227, KIP-279, KIP-392, KIP-497, KIP-595 (truncation
on fetch), KIP-841, KIP-903, KIP-966.
"""
