"""What members of groups do that are consumers in threads of their own, of several tests."""

from __future__ import annotations

from fastq import Consumer
from fastq.errors import RebalanceInProgress


def commits(consumer: Consumer) -> bool:
    """Commit, and whether it was taken: while another member leaves it is not, before the rebalance is done, which goes on with the next
    poll."""
    try:
        consumer.commit()
    except RebalanceInProgress:
        return False
    return True
