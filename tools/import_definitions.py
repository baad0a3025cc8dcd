"""Take Kafka's JSON message definitions over into the project's notation (see message_notation.py).

Usage: import_definitions.py FOLDER [OUTPUT], where FOLDER has the sub-folders clients, group-coordinator, and so on.
Run once for a release of Kafka; afterwards the .msg files are the source, and a later import is reviewed as a diff.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

from message_notation import NEVER, Versions, parse_range

FAMILIES = {
    "group-coordinator": "group_records",
    "transaction-coordinator": "transaction_records",
    "share-coordinator": "share_records",
    "metadata": "metadata_records",
    "raft": "quorum_state",
}
SINGLES = {  # messages that are neither a request nor a response, by name
    "RequestHeader": "headers",
    "ResponseHeader": "headers",
    "ConsumerProtocolAssignment": "consumer_protocol",
    "ConsumerProtocolSubscription": "consumer_protocol",
    "DefaultPrincipalData": "principal",
    "ProducerSnapshot": "producer_snapshot",
}


def snake(name: str) -> str:
    """Kafka's CamelCase in Python's spelling: `KRaftVersion` is kraft_version, `TimeoutMs` timeout_ms."""
    name = name.replace("KRaft", "Kraft")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return name + "_" if keyword.iskeyword(name) else name


def module_of(folder: str, definition: dict[str, Any]) -> str:
    name = definition["name"]
    if definition["type"] in ("request", "response"):
        return snake(re.sub("(Request|Response)$", "", name))
    if folder == "storage" and name.startswith("Remote"):
        return "remote_log_records"
    return FAMILIES.get(folder) or SINGLES.get(name) or "control_records"


def written_range(text: str, within: Versions) -> tuple[str, Versions]:
    """A range in our notation ("" when it is all of `within`) and its value."""
    versions = parse_range(text, Versions(0, NEVER)) & within
    if versions.first == within.first and (text.endswith("+") or versions.last == within.last):
        return "", versions
    if text.endswith("+"):
        return f"{versions.first}+", versions
    return (str(versions.first) if versions.first == versions.last else f"{versions.first}-{versions.last}"), versions


def field_lines(field: dict[str, Any], within: Versions, indent: int) -> list[str]:
    tagged = str(field.get("taggedVersions", ""))
    text, versions = written_range(field.get("versions", tagged), within)
    words = [f"{snake(field['name'])}:", field["type"], text]
    if "nullableVersions" in field:
        words += ["nullable", written_range(field["nullableVersions"], versions)[0]]
    if "tag" in field:
        words += ["tag", str(field["tag"]), written_range(tagged, versions)[0]]
    default = field.get("default")
    if default is not None and default != "":
        words += ["default", str(int(default, 16) if str(default).startswith("0x") else default).lower()]
    words += [
        word
        for word, given in (
            ("ignorable", field.get("ignorable")),
            ("key", field.get("mapKey")),
            ("inflexible", field.get("flexibleVersions") == "none"),
        )
        if given
    ]
    lines = [" " * indent + " ".join(word for word in words if word)]
    for inner in field.get("fields", ()):
        lines += field_lines(inner, versions, indent + 4)
    return lines


def message_lines(definition: dict[str, Any]) -> list[str]:
    valid = definition["validVersions"]
    head = [definition["type"], definition["name"]]
    if "apiKey" in definition:
        head.append(f"key={definition['apiKey']}")
    head.append(f"versions={valid}")
    if valid == "none":
        return [" ".join(head)]
    if definition.get("flexibleVersions", "none") != "none":
        head.append(f"flexible={definition['flexibleVersions']}")
    if "listeners" in definition:
        head.append("listeners=" + ",".join(definition["listeners"]))
    if definition.get("latestVersionUnstable"):
        head.append("unstable")
    versions = parse_range(valid, Versions(0, NEVER))
    lines = [" ".join(head)]
    for struct in definition.get("commonStructs", ()):
        lines.append(f"    struct {struct['name']}")
        for field in struct["fields"]:
            lines += field_lines(field, versions, 8)
    for field in definition["fields"]:
        lines += field_lines(field, versions, 4)
    return lines


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    source = Path(arguments[0])
    output = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).parent / "messages"
    modules: dict[str, list[list[str]]] = {}
    for path in sorted(source.glob("*/*.json")):
        definition = json.loads(re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        modules.setdefault(module_of(path.parent.name, definition), []).append(message_lines(definition))
    output.mkdir(parents=True, exist_ok=True)
    for module, messages in sorted(modules.items()):
        text = "\n\n".join("\n".join(lines) for lines in messages)
        (output / f"{module}.msg").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
