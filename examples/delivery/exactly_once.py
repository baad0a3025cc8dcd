"""Exactly once: read, process and write in one transaction. Neither a crash nor an abort leaves anything half done.

    python examples/delivery/exactly_once.py

For what goes from topics to topics: the results and the offsets of what they were made from are committed together, or
not at all. A handler that touches the world outside of the broker is not covered: there it is at least once.
"""

import os
import subprocess
import sys

from fastq import Consumer, Producer
from fastq.testing import Broker


def work(bootstrap_servers: str, crash_at: int) -> None:
    excused: list[str] = []
    with (
        Producer(bootstrap_servers=bootstrap_servers, transactional_id="billing-1") as producer,
        Consumer(
            "orders",
            bootstrap_servers=bootstrap_servers,
            group_id="billing",
            group_protocol="classic",  # there, a worker that comes back takes its place at once
            group_instance_id="worker-1",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        while records := consumer.poll(max_records=1, timeout=5.0):
            try:
                # Commits at the end, with the offsets of what the consumer has handed out; on an exception it aborts, and the
                # consumer goes back to what is committed.
                with producer.transaction(consumer=consumer):
                    for record in records:
                        producer.send("bills", record.value.replace(b"order", b"bill"), partition=0)
                    producer.flush()  # the bill is in the log by now; without the commit nobody will ever see it
                    if records[0].offset == crash_at:
                        os._exit(1)
                    if records[0].offset == 7 and not excused:
                        excused.append("the printer was out of paper")
                        raise RuntimeError(excused[0])
            except RuntimeError as error:
                print(f"order 7 is done again: {error}")
                continue
            if records[-1].offset == 9:
                return


def main() -> None:
    with Broker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("orders", [b"order %d" % number for number in range(10)], partition=0)
        for crash_at in (4, -1):  # the first worker dies in the middle of a transaction, the second one goes on
            subprocess.run([sys.executable, __file__, "work", broker.bootstrap_servers, str(crash_at)])
        with Consumer(
            "bills",
            bootstrap_servers=broker.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            bills = [record.value.decode() for record in consumer.read_to_end()]
    print(f"bills: {', '.join(bills)}")
    print(f"lost: {10 - len(set(bills))}, made twice: {len(bills) - len(set(bills))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main()
