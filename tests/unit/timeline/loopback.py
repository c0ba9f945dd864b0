"""A channel without a wire: the committer's requests are answered by the writer's side at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from filegroups.group_commit.commit_group import NotCommitted, commit_group
from filegroups.group_commit.member import Member, name_instant, offered_work
from filegroups.group_commit.messages import (
    Message,
    Offer,
    PeerLostError,
    decode_message,
    encode_message,
)
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import CommitResult
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime

RELEASE = "9.9"


def over_the_wire(message: Message) -> Message:
    return decode_message(encode_message(message))


@dataclass
class Loopback:
    """
    The committer's end of a channel to a member.

    ``acts`` happen before the answers to a kind of request; one that raises ``PeerLostError`` is a
    writer that died then, one that returns a message answers instead.
    """

    member: Member
    acts: dict[str, Callable[[], Message | None]] = field(default_factory=dict)
    questions: list[Message] = field(default_factory=list)
    closed: bool = False
    waits: list[int] = field(default_factory=list)
    _answers: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        if self.closed:
            raise PeerLostError("closed")
        self.questions.append(message)
        act = self.acts.get(message.kind)
        instead = act() if act else None
        answer = instead or self.member.answer(over_the_wire(message))
        self._answers.append(over_the_wire(answer))

    @property
    def asked(self) -> list[str]:
        return [one.kind for one in self.questions]

    def receive(self, wait_ms: int) -> Message:
        assert 0 < wait_ms <= 1000
        self.waits.append(wait_ms)
        return self._answers.pop()

    def close(self) -> None:
        self.closed = True


def remote(context: TableContext, channel: Loopback) -> PreparedWrite:
    """The member's write as the committer has it, whose table is ``context``."""
    offer = over_the_wire(channel.member.offer())
    assert isinstance(offer, Offer)
    return offered_work(context, channel.member.work.plan, offer)


def commit_offers(
    context: TableContext,
    channels: Sequence[Loopback],
    publishing: Callable[[InstantTime, frozenset[int]], object] = lambda _time, _numbers: None,
) -> list[CommitResult | NotCommitted]:
    """Commit the members' writes as a committer does, in one group."""

    def name(time: InstantTime, numbers: frozenset[int]) -> frozenset[int]:
        named = {number: channels[number] for number in sorted(numbers)}
        return name_instant(named, time, context.ports.clock, answer_ms=1000)

    works = [remote(context, one) for one in channels]
    return commit_group(context, works, publishing=publishing, name_instant=name)
