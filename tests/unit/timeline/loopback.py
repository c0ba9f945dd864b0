"""A channel without a wire: the committer's questions are answered by the writer's side at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filegroups.group_commit.member import Member
from filegroups.group_commit.messages import Message, PeerLostError, decode_message, encode_message
from filegroups.group_commit.remote_workload import remote_work
from filegroups.writing.write import PreparedWrite
from timeline.context import TableContext

RELEASE = "9.9"


def over_the_wire(message: Message) -> Message:
    return decode_message(encode_message(message))


@dataclass
class Loopback:
    """
    The committer's end of a channel to a member.

    ``acts`` happen before the answers to a kind of question; one that raises ``PeerLostError`` is
    a writer that died then, one that returns a message answers instead. It ``gives`` its rows
    away only where that is said, as one does whose rows are too big for it, and ``brings`` them
    along with its offer only where that is said.
    """

    member: Member
    acts: dict[str, Callable[[], Message | None]] = field(default_factory=dict)
    questions: list[Message] = field(default_factory=list)
    closed: bool = False
    gives: bool = False
    brings: bool = False
    waits: list[int] = field(default_factory=list)
    _answers: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.brings:
            self.member.few_bytes = 0

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
    assert offer.kind == "offer"
    if not (channel.gives or channel.brings):
        offer = replace(offer, rows_bytes=None)
    return remote_work(context, channel.member.work.plan, offer, channel, answer_ms=1000)
