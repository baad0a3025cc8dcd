"""Listeners: where a node listens, what it tells others to connect to, and which listener is for whom.

Rules (Apache Kafka's, KafkaConfig)
- A listener's name stands for a security protocol: its own, or that of listener.security.protocol.map. A map that is set is the whole map;
  without one the names of controller.listener.names are PLAINTEXT too, unless TLS or SASL is named anywhere.
- A controller's listener is never one for clients or other brokers. A node that is no controller has none.
- What is advertised of listeners for clients is among those of this node, and is never a wildcard.
- `listener.name.<listener, lower case>.<key>` is that key for one listener; before a key of SASL a mechanism may stand.
Names are upper case everywhere, however they were written.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastq.errors import ConfigError
from fastq.values import Value

from .config_keys import ConfigKey, ConfigValue, is_count, shown, unknown_key

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""In the order of Kafka's numbers for them, from 0 on."""
PREFIX = "listener.name."
WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class Listener:
    """An address to listen on or to advertise. `host` empty: all interfaces; `port` 0: a free one is taken.

    `settings` are the listener's own: `listener.name.<name>.<key>` by key (with its mechanism), parsed; for all others the broker's count.
    """

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"
    settings: Mapping[str, ConfigValue] = field(default_factory=dict, hash=False, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(text: str, protocols: Mapping[str, str] | None = None, key: str = "listeners") -> Listener:
    """`NAME://host:port`, `host:port` (PLAINTEXT) with IPv6 in brackets; ConfigError says what it takes."""
    name, separator, address = text.rpartition("://")
    name = name.upper() if separator else "PLAINTEXT"
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not name or not colon or not is_count(port) or int(port) > 65535 or (":" in host and f"[{host}]" not in address):
        raise ConfigError(
            f"{key} = {shown(text)} is not allowed: it takes NAME://host:port, a port of 0 to 65535, IPv6 addresses in brackets"
        )
    protocol = (protocols if protocols is not None else {"PLAINTEXT": "PLAINTEXT"}).get(name)
    if protocol is None:
        raise ConfigError(
            f"{key} = {text!r} is not allowed: listener.security.protocol.map has no protocol for {name}; "
            f"add {name}:PLAINTEXT to it"
        )
    if protocol != "PLAINTEXT":
        other = "" if name == protocol else f", and {name} is {protocol}"
        raise ConfigError(
            f"{key} = {text!r} is not allowed: this version serves PLAINTEXT{other}; nothing is served in the "
            "clear that was to be protected: make it a PLAINTEXT listener on an address that only trusted clients reach"
        )
    return Listener(name, host, int(port), protocol)


def parse_listeners(texts: Sequence[str], protocols: Mapping[str, str], key: str) -> tuple[Listener, ...]:
    """All of a setting, each with a name and an address of its own. ConfigError."""
    found = tuple(parse_listener(text, protocols, key) for text in texts)
    if not found:
        raise ConfigError(f"{key} = '' is not allowed: it takes at least one NAME://host:port")
    for position, listener in enumerate(found):
        before = found[:position]
        if any(other.name == listener.name for other in before):
            raise ConfigError(f"{key} names {listener.name} twice; each listener needs a name of its own")
        if key == "listeners" and any(
            other.port == listener.port != 0 and other.host == listener.host for other in before
        ):
            raise ConfigError(f"{key} has two listeners at {listener.host}:{listener.port}")
    return found


def security_protocols(
    text: str, *, is_set: bool, listeners: Sequence[str], controller_names: Sequence[str]
) -> dict[str, str]:
    """The protocol of each listener's name. ConfigError for a map that makes no sense."""
    protocols: dict[str, str] = {}
    for pair in filter(None, (item.strip() for item in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.rpartition(":"))
        if not colon or protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map = {shown(text)} is not allowed: it takes NAME:PROTOCOL pairs, protocols "
                + ", ".join(PROTOCOLS)
            )
        if name in protocols:
            raise ConfigError(
                f"listener.security.protocol.map = {shown(text)} is not allowed: it has {name} twice; it takes each name once"
            )
        protocols[name] = protocol
    if not is_set:
        named = {*controller_names, *(item.rpartition("://")[0].upper() for item in listeners)}
        if named.isdisjoint(PROTOCOLS[1:]):
            protocols |= dict.fromkeys((name for name in controller_names if name not in protocols), "PLAINTEXT")
    return protocols


class Listeners(Value):
    """All listeners of a node. `own` and `advertised` are those for clients and brokers, `controllers` and `advertised_controllers`
    (in the order of controller.listener.names) those for the metadata quorum; empty where the node has not the role. An advertised
    controller without a host listens on all interfaces, and nobody has said how it is reached."""

    own: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    advertised_controllers: tuple[Listener, ...]
    inter_broker_name: str


def divide_listeners(
    every: Sequence[Listener],
    advertised: Sequence[Listener] | None,
    *,
    roles: Sequence[str],
    controller_names: Sequence[str],
    protocols: Mapping[str, str],
    inter_broker_name: str | None,
    alone: bool,
) -> Listeners:
    """Which listener is for whom, checked. `alone`: nobody else is to reach this node's controller, which needs no listener then.

    ConfigError.
    """
    own = tuple(listener for listener in every if listener.name not in controller_names)
    controllers = tuple(listener for listener in every if listener.name in controller_names)
    _check_roles(own, controllers, roles, controller_names, protocols, alone=alone)
    told = {listener.name: listener for listener in advertised or every}
    for listener in told.values() if advertised is not None else ():
        if listener.host in WILDCARDS[1:]:
            raise ConfigError(
                f"advertised.listeners = {str(listener)!r} is not allowed: it takes an address that "
                f"{'other nodes' if listener.name in controller_names else 'clients'} can connect to"
            )
    found = tuple(
        replace(listener, host=reachable(listener.host))
        for listener in told.values()
        if listener.name not in controller_names
    )
    by_name = {listener.name: listener for listener in controllers}
    quorum = tuple(
        replace(listener, host="" if listener.host in WILDCARDS else listener.host)
        for listener in (told.get(name, by_name.get(name)) for name in controller_names)
        if listener is not None and "controller" in roles
    )
    if "broker" not in roles:
        if inter_broker_name in controller_names:
            raise ConfigError(
                f"inter.broker.listener.name = {inter_broker_name!r} is not allowed: it takes a listener of brokers, and this one is in "
                "controller.listener.names; remove it, as this node is a controller only"
            )
        if inter_broker_name is not None and inter_broker_name not in protocols:
            raise ConfigError(
                f"inter.broker.listener.name = {inter_broker_name!r} is not allowed: listener.security.protocol.map does not have it; "
                "remove it, as this node is a controller only"
            )
        return Listeners((), (), controllers, quorum, inter_broker_name or "")
    for listener in found:
        if listener.name not in {item.name for item in own}:
            raise ConfigError(
                f"advertised.listeners = {str(listener)!r} is not allowed: it takes names of listeners, "
                f"which are {', '.join(item.name for item in own)}"
            )
    if not found:
        raise ConfigError(
            "advertised.listeners names no listener for clients: all of them are controller listeners; "
            f"add one of {', '.join(listener.name for listener in own)}"
        )
    return Listeners(own, found, controllers, quorum, _inter_broker(inter_broker_name, found, protocols, alone=alone))


def _check_roles(
    own: Sequence[Listener],
    controllers: Sequence[Listener],
    roles: Sequence[str],
    controller_names: Sequence[str],
    protocols: Mapping[str, str],
    *,
    alone: bool,
) -> None:
    """The listeners are those that the roles ask for. ConfigError."""
    names = ",".join(controller_names)
    if "broker" in roles and not own:
        raise ConfigError(
            "listeners names no listener for clients: all of them are controller listeners; add one, as in PLAINTEXT://:9092"
        )
    if "controller" not in roles:
        if controllers:
            raise ConfigError(
                f"listeners = {str(controllers[0])!r} is not allowed: {controllers[0].name} is in controller.listener.names, and this node "
                "is no controller; remove it, or add controller to process.roles"
            )
        for name in controller_names:
            if name not in protocols:
                raise ConfigError(
                    f"controller.listener.names = {names!r} is not allowed: listener.security.protocol.map has no protocol for {name}; "
                    f"add {name}:PLAINTEXT to it"
                )
        return
    if "broker" not in roles and own:
        raise ConfigError(
            f"listeners = {str(own[0])!r} is not allowed: this node is a controller only, and takes listeners of "
            f"controller.listener.names, {names}"
        )
    missing = [name for name in controller_names if name not in {listener.name for listener in controllers}]
    if missing and not alone:
        raise ConfigError(
            f"controller.listener.names = {names!r} is not allowed: listeners has no {missing[0]}, and other nodes must reach this "
            f"controller; add {missing[0]}://host:port to listeners"
        )


def _inter_broker(
    name: str | None, advertised: Sequence[Listener], protocols: Mapping[str, str], *, alone: bool
) -> str:
    """The listener between brokers: as set, else PLAINTEXT, or for a node that is alone its first one."""
    names = [listener.name for listener in advertised]
    if name is None and alone and "PLAINTEXT" not in names:
        return names[0]
    wanted = "PLAINTEXT" if name is None else name
    if wanted not in names:
        unknown = "" if wanted in protocols else ", which listener.security.protocol.map does not have,"
        raise ConfigError(
            f"inter.broker.listener.name = {wanted!r}{unknown}{' (the default)' if name is None else ''} is not allowed: "
            f"it takes one of {', '.join(names)}, a listener that is advertised and no controller's"
        )
    return wanted


def reachable(host: str) -> str:
    """What to advertise for an address to listen on: all interfaces become the name of this machine."""
    return socket.gethostname() if host in WILDCARDS else host


def own_key(name: str, keys: Mapping[str, ConfigKey]) -> tuple[str, str, ConfigKey]:
    """Of `listener.name.<listener>.<key>` the listener's name, the key with its mechanism, and the row of the key. ConfigError."""
    listener, _, rest = name[len(PREFIX) :].partition(".")
    mechanism, found, _ = rest.partition(".sasl.")
    plain = rest[len(mechanism) + 1 :] if found and "." not in mechanism else rest
    key = keys.get(plain)
    if not listener or key is None:
        raise (
            unknown_key(plain, keys, f"setting of a listener, {name}:", "broker-settings.md")
            if listener
            else ConfigError(f"{name} is not allowed: it takes {PREFIX}<listener in lower case>.<key>")
        )
    return listener.upper(), rest, key


def limits_by_address(text: str, *, looks_up: bool = True) -> dict[str, int]:
    """max.connections.per.ip.overrides by address, as connections have theirs; of a host's name all that it has now. Without `looks_up`
    names are left out: nobody is asked for their addresses, which may take long."""
    limits: dict[str, int] = {}
    for pair in filter(None, (item.strip() for item in text.split(","))):
        host, colon, count = pair.rpartition(":")
        if not colon or not is_count(count):
            raise ConfigError(
                f"max.connections.per.ip.overrides = {text!r} is not allowed: it takes address:count pairs"
            )
        host = host.strip().strip("[]")
        limits.update(dict.fromkeys(_addresses(host, text, looks_up), int(count)))
    return limits


def _addresses(host: str, text: str, looks_up: bool) -> set[str]:
    """The addresses of a host, each in the one spelling that the system gives it; without a scope, as peers come without one."""
    try:
        if _is_address(host):
            found: list[str | int] = [host]
        elif looks_up:
            found = [item[4][0] for item in socket.getaddrinfo(host, 0)]
        elif ":" in host or not host.strip("0123456789."):  # no name, so nobody would be asked at the next start either
            found = [item[4][0] for item in socket.getaddrinfo(host, 0, flags=socket.AI_NUMERICHOST)]
        else:
            host.encode("idna")  # what it is asked for by
            found = []
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"max.connections.per.ip.overrides = {text!r} is not allowed: {host!r} is no address, and no name that has one here ({error}); "
            "it takes address:count pairs"
        ) from error
    parsed = [ipaddress.ip_address(str(one).partition("%")[0]) for one in found]
    return {str(getattr(one, "ipv4_mapped", None) or one) for one in parsed}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
