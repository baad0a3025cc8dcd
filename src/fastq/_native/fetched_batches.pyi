from fastq._native.fetch import FetchedPartition

class FetchedBatches:
    limit: int
    def __init__(
        self,
        part: FetchedPartition,
        topic: str,
        position: int,
        *,
        check_crcs: bool = True,
        read_committed: bool = False,
        decompressed_bytes_max: int = ...,
        broker: str = "",
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def position_epoch(self) -> int: ...
    @property
    def end_position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def broker(self) -> str: ...
    @property
    def broken(self) -> bool: ...
    @property
    def exhausted(self) -> bool: ...
