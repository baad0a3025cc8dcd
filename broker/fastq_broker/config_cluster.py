"""A node's place in its cluster: its roles, the controllers of the metadata quorum, and what must hold between those settings.

Rules: Apache Kafka's (KafkaConfig, QuorumConfig), but for a node that is alone: broker and controller in one, with no other controller
named. It needs no address of a quorum, and its controller no listener (`is_among_others`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.errors import ConfigError
from fastq.values import NamedTuple

from .config_keys import ConfigValue, is_count, shown

if TYPE_CHECKING:
    from .config import BrokerConfig

VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"
ADDRESSES = "controller.quorum.voter.addresses"
ROLES = ("broker", "controller")


class HostPort(NamedTuple):
    """Where a controller is reached."""

    host: str
    port: int


def parse_voters(texts: Sequence[str], key: str = VOTERS) -> dict[int, HostPort]:
    """`id@host:port` of each controller. ConfigError."""
    voters: dict[int, HostPort] = {}
    for text in texts:
        number, at, address = text.partition("@")
        place = _address(address)
        if not at or not is_count(number.strip()) or place is None:
            raise ConfigError(f"{key} = {shown(text)} is not allowed: it takes id@host:port of all controllers")
        if int(number) in voters:
            raise ConfigError(f"{key} names node {int(number)} twice; it takes each controller once")
        voters[int(number)] = place
    return voters


def parse_bootstrap(texts: Sequence[str]) -> tuple[HostPort, ...]:
    """`host:port` of each controller to ask. ConfigError."""
    found = []
    for text in texts:
        place = _address(text)
        if place is None:
            raise ConfigError(f"{BOOTSTRAP} = {shown(text)} is not allowed: it takes host:port of controllers")
        found.append(place)
    return tuple(found)


def _address(text: str) -> HostPort | None:
    """host:port, IPv6 in brackets; None for what is none."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed) or not is_count(port) or not 0 < int(port) <= 65535:
        return None
    return HostPort(host[1:-1] if bracketed else host, int(port))


def is_alone(node_id: int, roles: Sequence[str], voters: Mapping[int, HostPort], bootstrap: Sequence[HostPort]) -> bool:
    """Whether a node is its whole cluster, as far as its configuration says."""
    return set(roles) == set(ROLES) and voters.keys() <= {node_id} and len(bootstrap) <= 1


def check_quorum(
    node_id: int, roles: Sequence[str], voters: Mapping[int, HostPort], bootstrap: Sequence[HostPort]
) -> None:
    """The quorum fits the node's roles. ConfigError."""
    names = ",".join(roles)
    if not roles:
        raise ConfigError("process.roles = '' is not allowed: it takes broker, controller, or both")
    if set(roles) != set(ROLES) and not voters and not bootstrap:
        raise ConfigError(
            f"process.roles = {names!r} is not allowed without {BOOTSTRAP} or {VOTERS}: the node would not find its controllers; "
            f"set {BOOTSTRAP} to their host:port"
        )
    if voters and ("controller" in roles) != (node_id in voters):
        named = ", ".join(map(str, voters))
        raise ConfigError(
            f"{VOTERS} names the nodes {named}, and not node {node_id}, which is a controller (process.roles = {names}): add it"
            if "controller" in roles
            else f"{VOTERS} names node {node_id}, which is no controller (process.roles = {names}): remove it there, or give it that role"
        )


def check_addresses(voters: Mapping[int, HostPort], addresses: Mapping[int, HostPort]) -> None:
    """Voters have one list of addresses. ConfigError."""
    if voters and addresses:
        raise ConfigError(
            f"{ADDRESSES} does not go with {VOTERS}, which says where controllers are that never change: remove one of them"
        )


def check_times(values: Mapping[str, ConfigValue]) -> None:
    """What would make nodes give each other up. `values` by attribute. ConfigError."""

    def at_most(name: str, factor: int, limit: str, why: str) -> None:
        value, most = (values[key.replace(".", "_")] for key in (name, limit))
        if value * factor > most:
            share = "half of " if factor == 2 else ""
            raise ConfigError(f"{name} = {value} is not allowed: it takes at most {share}{limit}, {most}, {why}")

    at_most("broker.heartbeat.interval.ms", 2, "broker.session.timeout.ms", "or one lost heartbeat fences the broker")
    at_most("replica.fetch.wait.max.ms", 1, "replica.socket.timeout.ms", "or a Fetch fails that only waits")
    at_most("replica.fetch.wait.max.ms", 1, "replica.lag.time.max.ms", "or a follower that only waits leaves the ISR")


def check_early_start(names: Sequence[str] | None, known: Sequence[str]) -> None:
    """Listeners that are to start early are listeners. ConfigError."""
    for name in names or ():
        if name.upper() not in known:
            raise ConfigError(
                f"early.start.listeners = {shown(name)} is not allowed: it takes listeners of this node, {', '.join(known)}"
            )


def is_among_others(config: BrokerConfig) -> bool:
    """Whether a node is one of several, as far as its configuration says: a broker or a controller only, or with other controllers named.

    One bootstrap server is this node where it has the port of a listener of this controller, or that has none.
    """
    here = {item.port for item in (*config.controller_listeners, *config.advertised_controller_listeners)} - {0}
    servers = config.controller_quorum_bootstrap_servers
    return (
        set(config.process_roles) != set(ROLES)
        or len(config.controller_quorum_voters) > 1
        or len(servers) > 1
        or any(here and place.port not in here for place in servers)
    )
