"""What reading and writing the wire's primitives raises. Rule: nothing of fastq is imported here, as all native modules may use it."""


class DecodeError(ValueError):
    """Bytes that are not what the protocol says they are. The one error of every decoder.

    `position` is the offset in the buffer at which the decoder stood, `expected` says what should have been there,
    `detail` what was found; `within` names the message, when the caller knew it.
    """

    def __init__(self, expected: str, position: int, detail: str = "", within: str = "") -> None:
        super().__init__(expected, position, detail, within)
        self.expected = expected
        self.position = position
        self.detail = detail
        self.within = within

    def __str__(self) -> str:
        where = f" in {self.within}" if self.within else ""
        what = f": {self.detail}" if self.detail else ""
        return f"expected {self.expected} at byte {self.position}{where}{what}"


class EncodeError(ValueError):
    """A value that the wire cannot carry: out of range, too long, or set in a version that does not have its field."""
