"""What the admin clients do with users' SCRAM credentials and quotas, written once: operations of `fastq.net.operations`, by the rules of
`core.py`.

Rules of this file:
- Any broker is asked what there is; what changes is asked of the controller, or of a broker that forwards it.
- A password is hashed once, before anything is sent, and is in no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from fastq.admin.cluster import until_settled
from fastq.admin.core import Answers, _error, or_error_of_each, per_item
from fastq.admin.types import Outcome, Outcomes, check_kind
from fastq.admin.user_types import (
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaMatch,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
    check_quota,
)
from fastq.arguments import items_of, mapping_of
from fastq.errors import FastqError
from fastq.net.operations import ANY, CONTROLLER, Call, Operation
from fastq.net.sasl import salted_password
from fastq.protocol import messages as m

SALT_BYTES = 32
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""How DescribeClientQuotas compares a name."""

Credentials = tuple[ScramCredentialInfo, ...]
ScramChange = UserScramCredentialUpsertion | UserScramCredentialDeletion
ScramDeletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
ScramUpsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion


def describe_user_scram_credentials(users: Sequence[str] | None) -> Operation[Outcomes[str, Credentials]]:
    """DescribeUserScramCredentials (KIP-554); of all users (None) those that have one."""
    if users is None:
        response: m.DescribeUserScramCredentialsResponse = yield from until_settled(
            Call(ANY, m.DescribeUserScramCredentialsRequest(users=None)), _top_error
        )
        found = sorted(_described(response).items())
        return Outcomes(
            {
                user: Outcome(error=answer) if isinstance(answer, FastqError) else Outcome(answer)
                for user, answer in found
            }
        )

    def send(left: list[str]) -> Operation[Answers[str, Credentials]]:
        request = m.DescribeUserScramCredentialsRequest(
            users=[m.DescribeUserScramCredentialsRequest.UserName(name=user) for user in left]
        )
        response: m.DescribeUserScramCredentialsResponse = yield Call(ANY, request)
        error = _top_error(response)
        return dict.fromkeys(left, error) if error is not None else _described(response)

    # An empty list would ask for all.
    return (yield from per_item(users, send))


def _described(response: m.DescribeUserScramCredentialsResponse) -> dict[str, Credentials | FastqError]:
    return {
        result.user: _error(result.error_code, result.error_message)
        if result.error_code
        else tuple(
            ScramCredentialInfo(_mechanism(info.mechanism), info.iterations)
            for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
        )
        for result in response.results
    }


def _mechanism(number: int) -> ScramMechanism:
    """What a number is called; UNKNOWN where this release has no name for it."""
    try:
        return ScramMechanism(number)
    except ValueError:
        return ScramMechanism.UNKNOWN


def alter_user_scram_credentials(alterations: Sequence[ScramChange]) -> Operation[Outcomes[str, None]]:
    """AlterUserScramCredentials (KIP-554): an outcome a user. Hashes passwords before it sends.

    Apache Kafka takes one change of a user in a request, so there is one for each mechanism; who has an error is in no later one.
    """
    by_mechanism: dict[ScramMechanism, list[tuple[str, ScramDeletion | ScramUpsertion]]] = {}
    for change in alterations:
        item = _upsertion(change) if isinstance(change, UserScramCredentialUpsertion) else _deletion(change)
        by_mechanism.setdefault(change.mechanism, []).append((change.user, item))
    outcomes: dict[str, Outcome[None]] = {change.user: Outcome() for change in alterations}
    for number, changes in enumerate(by_mechanism.values()):
        users = list(dict.fromkeys(user for user, _ in changes if outcomes[user].error is None))
        operation = per_item(users, partial(_alter, changes))
        # What came before is done by now, whatever becomes of the rest.
        outcomes.update((yield from (or_error_of_each(users, operation) if number else operation)))
    return Outcomes(outcomes)


def _alter(
    changes: Sequence[tuple[str, ScramDeletion | ScramUpsertion]], users: list[str]
) -> Operation[Answers[str, None]]:
    wanted = [change for user, change in changes if user in users]
    request = m.AlterUserScramCredentialsRequest(
        deletions=[change for change in wanted if isinstance(change, ScramDeletion)],
        upsertions=[change for change in wanted if isinstance(change, ScramUpsertion)],
    )
    response: m.AlterUserScramCredentialsResponse = yield Call(CONTROLLER, request)
    return {
        result.user: _error(result.error_code, result.error_message) if result.error_code else None
        for result in response.results
    }


def _deletion(change: UserScramCredentialDeletion) -> ScramDeletion:
    return ScramDeletion(name=change.user, mechanism=change.mechanism)


def _upsertion(change: UserScramCredentialUpsertion) -> ScramUpsertion:
    import secrets

    salt = secrets.token_bytes(SALT_BYTES) if change.salt is None else change.salt
    return ScramUpsertion(
        name=change.user,
        mechanism=change.mechanism,
        iterations=change.iterations,
        salt=salt,
        salted_password=salted_password(
            change.mechanism.name.replace("_", "-"), change.password, salt, change.iterations
        ),
    )


# -- quotas ------------------------------------------------------------------------------------------------------------------


def describe_client_quotas(wanted: ClientQuotaFilter) -> Operation[dict[ClientQuotaEntity, dict[str, float]]]:
    """DescribeClientQuotas (KIP-546)."""
    check_kind("which quotas", wanted, ClientQuotaFilter, "a ClientQuotaFilter")
    request = m.DescribeClientQuotasRequest(
        components=[_component(kind, name) for kind, name in wanted.components.items()], strict=wanted.strict
    )
    response: m.DescribeClientQuotasResponse = yield from until_settled(Call(ANY, request), _top_error)
    return {
        ClientQuotaEntity({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)
        }
        for entry in sorted(response.entries or (), key=_order)
    }


def _order(entry: m.DescribeClientQuotasResponse.EntryData) -> list[tuple[str, str]]:
    return sorted((part.entity_type, part.entity_name or "") for part in entry.entity)


def _component(kind: str, name: str | ClientQuotaMatch | None) -> m.DescribeClientQuotasRequest.ComponentData:
    if isinstance(name, ClientQuotaMatch):
        return m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=SPECIFIED, match=None)
    match_type = DEFAULT if name is None else EXACT
    return m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=name)


def alter_client_quotas(
    changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]], *, validate_only: bool
) -> Operation[Outcomes[ClientQuotaEntity, None]]:
    """AlterClientQuotas (KIP-546): an outcome an entity."""
    given = mapping_of(changes, "changes", '{ClientQuotaEntity({"user": "alice"}): {"producer_byte_rate": 1e6}}')
    items_of(given, ClientQuotaEntity, "entities", '[ClientQuotaEntity({"user": "alice"})]')
    wanted = {
        entity: dict(mapping_of(values, f"quotas of {entity}", '{"producer_byte_rate": 1e6}'))
        for entity, values in given.items()
    }
    for values in wanted.values():
        for key, value in values.items():
            check_quota(key, value)

    def send(left: list[ClientQuotaEntity]) -> Operation[Answers[ClientQuotaEntity, None]]:
        request = m.AlterClientQuotasRequest(
            entries=[
                m.AlterClientQuotasRequest.EntryData(
                    entity=[
                        m.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.entries.items()
                    ],
                    ops=[
                        m.AlterClientQuotasRequest.OpData(key=key, value=float(value or 0), remove=value is None)
                        for key, value in wanted[entity].items()
                    ],
                )
                for entity in left
            ],
            validate_only=validate_only,
        )
        response: m.AlterClientQuotasResponse = yield Call(CONTROLLER, request)
        return {
            ClientQuotaEntity({part.entity_type: part.entity_name for part in entry.entity}): _error(
                entry.error_code, entry.error_message
            )
            if entry.error_code
            else None
            for entry in response.entries
        }

    return per_item(list(wanted), send)


def _top_error(
    response: m.DescribeUserScramCredentialsResponse | m.DescribeClientQuotasResponse,
) -> FastqError | None:
    return _error(response.error_code, response.error_message) if response.error_code else None
