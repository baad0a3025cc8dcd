"""What a member cannot do for want of something, and how long it bears with others."""

from __future__ import annotations

import errno
import os

import pytest
from fastq_broker.raft.roles import NoRoom
from raft_setting import Setting


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_vote_that_cannot_be_written_is_not_given(code: int) -> None:
    """For want of anything it may be asked for again, of the same member; a disk that fails is another matter."""
    setting = Setting(1, 4)
    setting.votes.disk.full, setting.votes.disk.code = True, code
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        setting.vote()
    assert isinstance(caught.value, NoRoom) == (code != errno.EIO)
    assert (setting.machine.epoch, setting.machine.voted) == (4, None)
    setting.votes.disk.full = False
    assert setting.vote().granted


def test_nobody_waits_for_news_as_long_as_he_likes() -> None:
    """He may be gone long before."""
    setting = Setting(1, 4)
    setting.lead()
    end, epoch = setting.log.end, setting.machine.epoch
    assert setting.fetch(offset=end, last_epoch=epoch, high_watermark=end, wait_s=3600.0) == []
    assert len(setting.machine._waiters) == 1
    setting.poll(setting.now + setting.machine.config.fetch_timeout_s)
    assert setting.machine._waiters == []
