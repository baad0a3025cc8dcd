"""Membership in consumer groups, committed offsets, and who reads what."""

from fastq.consumer.group.assignors import Assignor, GroupTopics
from fastq.consumer.group.commits import OffsetAndMetadata
from fastq.consumer.group.listener import RebalanceListener
from fastq.consumer.group.membership import GroupMetadata
from fastq.consumer.group.subscription import MemberSubscription

__all__ = [
    "Assignor",
    "GroupMetadata",
    "GroupTopics",
    "MemberSubscription",
    "OffsetAndMetadata",
    "RebalanceListener",
]
