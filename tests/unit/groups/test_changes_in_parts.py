"""Changes that take several batches, the last of which may be refused: what is there by then is whole, and who asks again finishes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from fastq_broker.groups.group import Committer
from fastq_broker.groups.shard import Commit
from group_world import World

from fastq.errors import ErrorCode, KafkaError, NotEnoughReplicas

COUNT = 40


class Counted(World):
    """After `batches_left` batches, if that is set, there are too few replicas."""

    batches_left: int | None = None
    batches = 0

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> KafkaError | None:
        if self.batches_left == 0:
            return NotEnoughReplicas("too few")
        if self.batches_left is not None:
            self.batches_left -= 1
        error = super()._write(records)
        self.batches += error is None
        return error


@pytest.fixture
def world() -> Counted:
    world = Counted()
    world.topics(t=COUNT)
    world.batch_bytes_max = 400
    return world


def committed(world: World) -> dict[int, int]:
    return {partition: found.offset for (_, partition), found in world.shard.offsets.of_group("g").items()}


def commit(world: World, offset: int) -> set[int]:
    told: list[int] = []
    entries = [("t", partition, offset, -1, None) for partition in range(COUNT)]
    world.shard.commit(Commit("g", Committer(), entries, 8), lambda errors: told.extend(errors.values()))
    assert len(told) == COUNT, "answered once, for each partition"
    return set(told)


def delete_group(world: World) -> int:
    told: list[int] = []
    world.shard.delete_group("g", told.append)
    (error,) = told
    return error


def delete_offsets(world: World) -> int:
    told: list[int] = []
    world.shard.delete_offsets(
        "g",
        [("t", partition) for partition in range(COUNT)],
        lambda error, errors: told.append(error or max(errors.values())),
    )
    (error,) = told
    return error


def test_a_commit_that_takes_several_batches_is_told_as_refused_where_one_was(world: Counted) -> None:
    assert commit(world, 1) == {ErrorCode.NONE}
    assert world.batches > 3 and committed(world) == dict.fromkeys(range(COUNT), 1)
    world.batches_left = 2
    assert ErrorCode.NONE not in commit(world, 2)
    found = [committed(world)[partition] for partition in range(COUNT)]
    assert found == sorted(found, reverse=True) and set(found) == {1, 2}, "what was written is there, and in order"
    world.load()
    assert [committed(world)[partition] for partition in range(COUNT)] == found
    world.batches_left = None
    assert commit(world, 3) == {ErrorCode.NONE}
    assert committed(world) == dict.fromkeys(range(COUNT), 3)


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_a_deletion_that_is_cut_short_is_finished_by_who_asks_again(
    world: Counted, delete: Callable[[Counted], int]
) -> None:
    commit(world, 1)
    world.batch_bytes_max = 150
    world.batches_left = 2
    assert delete(world) != ErrorCode.NONE
    assert 0 < len(committed(world)) < COUNT
    world.load()
    assert "g" in world.groups, "it can be named still"
    world.batches_left = None
    assert delete(world) == ErrorCode.NONE
    assert committed(world) == {}
    world.load()
    assert committed(world) == {}
    assert ("g" in world.groups) == (delete is delete_offsets)
