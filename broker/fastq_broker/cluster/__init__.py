"""A node among others: how it asks the active controller, comes and goes, forwards what clients want changed, and is kept running.

Each module decides in a machine without I/O, and has a thin driver where there is something to drive. Sources: KIP-500, KIP-590, KIP-631,
KIP-919; BrokerLifecycleManager, NodeToControllerChannelManager, ForwardingManager, ControllerRegistrationManager.
"""

from fastq.errors import FastqError


class Halted(FastqError):
    """This node must not go on; the message says why."""

    default_message = "this node must not go on"
