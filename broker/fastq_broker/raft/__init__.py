"""Raft as Apache Kafka speaks it (KRaft): who leads the metadata log, and what of it is committed.

`machine` decides, without any I/O; `wire` turns its messages into Kafka's and back; `storage` keeps its log and votes. Sources: KIP-595,
KIP-630, KIP-853, KIP-996, KIP-1166; KafkaRaftClient, QuorumState, LeaderState.
"""
