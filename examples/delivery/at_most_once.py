"""At most once: commit, then handle. What a crash catches in between is lost, and nothing is ever handled twice.

    python examples/delivery/at_most_once.py

For what may be missed but must not be repeated: an alarm bell, a sample of a measurement.
"""

import os
import subprocess
import sys
from pathlib import Path

from fastq import Consumer, Producer
from fastq.testing import Broker


def work(bootstrap_servers: str, handled: str, crash_at: int) -> None:
    with (
        Consumer(
            "orders",
            bootstrap_servers=bootstrap_servers,
            group_id="billing",
            group_protocol="classic",  # there, a worker that comes back takes its place at once
            group_instance_id="worker-1",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
        open(handled, "a") as out,
    ):
        while records := consumer.poll(max_records=1, timeout=5.0):
            consumer.commit()  # first: from here on nobody gets these records again
            for record in records:
                if record.offset == crash_at:
                    os._exit(1)
                print(record.value.decode(), file=out, flush=True)
                if record.offset == 9:
                    return


def main() -> None:
    handled = sys.argv[1] if len(sys.argv) > 1 else "handled.txt"
    Path(handled).write_text("")
    with Broker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("orders", [b"order %d" % number for number in range(10)], partition=0)
        for crash_at in (4, -1):  # the first worker dies with order 4 in its hands, the second one goes on
            subprocess.run([sys.executable, __file__, "work", broker.bootstrap_servers, handled, str(crash_at)])
    lines = Path(handled).read_text().splitlines()
    print(f"handled: {', '.join(lines)}")
    print(f"lost: {10 - len(set(lines))}, handled twice: {len(lines) - len(set(lines))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
