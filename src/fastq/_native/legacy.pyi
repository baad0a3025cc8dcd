from typing_extensions import Buffer

from fastq._native.batch_codec import DecodedRecord, _Decompress

def decode_message_set(
    data: Buffer,
    start: int = 0,
    end: int | None = None,
    decompress: _Decompress | None = None,
    *,
    check_crc: bool = True,
    limit_bytes: int = ...,
) -> tuple[list[DecodedRecord], int]: ...
