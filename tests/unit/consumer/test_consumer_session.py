"""Fetch sessions (KIP-227): what a fetch names, and what is forgotten."""

from fastq.consumer.session import EPOCH_MAX, FetchSession, Wanted
from fastq.metadata import TopicPartition

A, B, C = (TopicPartition("t", n) for n in range(3))
ID, OTHER_ID = b"i" * 16, b"o" * 16


def ask(offset: int, topic_id: bytes = ID) -> Wanted:
    return Wanted(topic_id, offset, 0, 100)


def test_full_then_only_what_changed() -> None:
    session = FetchSession()
    plan = session.plan({A: ask(0), B: ask(0)}, by_id=True)
    assert (plan.session_id, plan.session_epoch, set(plan.send), plan.forgotten) == (0, 0, {A, B}, {})
    session.answered(77)
    plan = session.plan({A: ask(5), B: ask(0)}, by_id=True)
    assert (plan.session_id, plan.session_epoch, plan.send, plan.forgotten) == (77, 1, {A: ask(5)}, {})
    session.answered(77)
    plan = session.plan({B: ask(0), C: ask(3)}, by_id=True)
    assert (plan.session_epoch, plan.send, plan.forgotten) == (2, {C: ask(3)}, {A: ID})


def test_a_topic_made_again_is_forgotten_by_its_old_id_and_sent_by_its_new() -> None:
    session = FetchSession()
    session.plan({A: ask(0)}, by_id=True)
    session.answered(1)
    plan = session.plan({A: ask(0, OTHER_ID)}, by_id=True)
    assert (plan.send, plan.forgotten) == ({A: ask(0, OTHER_ID)}, {A: ID})


def test_lost_in_doubt_and_refused_sessions_begin_again() -> None:
    session = FetchSession()
    session.plan({A: ask(0)}, by_id=False)
    session.answered(9)
    session.restart()
    plan = session.plan({A: ask(0)}, by_id=False)
    assert (plan.session_id, plan.session_epoch, plan.send) == (9, 0, {A: ask(0)})  # closes the old one
    session.answered(10)
    session.lost()
    plan = session.plan({A: ask(0)}, by_id=False)
    assert (plan.session_id, plan.session_epoch) == (0, 0)
    session.answered(0)  # a broker that keeps none
    assert session.plan({A: ask(1)}, by_id=False).session_epoch == 0


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    session = FetchSession()
    session.plan({A: ask(0)}, by_id=True)
    session.answered(5)
    plan = session.plan({A: ask(0)}, by_id=False)
    assert (plan.session_id, plan.session_epoch, plan.send, plan.forgotten) == (5, 0, {A: ask(0)}, {})


def test_epochs_wrap_to_one() -> None:
    session = FetchSession()
    session.answered(3)
    session.epoch = EPOCH_MAX
    session.answered(3)
    assert session.epoch == 1
