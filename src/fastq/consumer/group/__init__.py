"""Membership in consumer groups, committed offsets, and who reads what."""

from fastq.consumer.group.assignors import Assignor, GroupTopics
from fastq.consumer.group.listener import RebalanceListener
from fastq.consumer.group.subscription import MemberSubscription
from fastq.metadata import GroupMetadata, OffsetAndMetadata

__all__ = [
    "Assignor",
    "GroupMetadata",
    "GroupTopics",
    "MemberSubscription",
    "OffsetAndMetadata",
    "RebalanceListener",
]
