"""What a meta holds, and the rules that hold inside one subscription.

Plain models: whoever implements :class:`~cdc.meta.base.Meta` loads and stores a :class:`State`; the rules stand here
once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cdc.errors import BatchError, BatchOrderError, UsageError

RecordText = Annotated[str, Field(pattern=r"^\d+ \d+ \d+ \S+$")]
"""``GENERATION VERSION APPLIED_SEQ ID``, separated by single blanks."""


@dataclass(frozen=True)
class TableRecord:
    """A Delta table as it was when a batch with changes of it was acked. The lake must never lie behind this."""

    generation: int
    version: int
    """The Delta version of the table's own last commit by then."""
    applied_seq: int
    """The seq up to which changes had been applied; 0: it had been made, and nothing had been applied."""
    delta_id: str
    """The table's id in Delta's metadata, which stays the same until the table is replaced."""

    @property
    def text(self) -> str:
        return f"{self.generation} {self.version} {self.applied_seq} {self.delta_id}"

    @classmethod
    def of(cls, text: str) -> TableRecord:
        """The record that :attr:`text` wrote."""
        generation, version, applied_seq, delta_id = text.split(" ")
        return cls(int(generation), int(version), int(applied_seq), delta_id)


class Gap(BaseModel):
    """Transactions that a subscriber never got, and whose loss an operator has accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after_seq: int = Field(ge=0)
    """Transactions behind this one are missing…"""
    until_seq: int = Field(ge=0)
    """…up to this one, which is missing as well if it was a transaction."""
    table: str | None = None
    """``db.table`` where one table alone lacks them; None: all of the subscriber's tables."""
    reason: str
    accepted: AwareDatetime

    def covers(self, after_seq: int, until_seq: int, table: str | None = None) -> bool:
        """Whether all transactions in (after_seq, until_seq] of the table (None: of all tables) are in the gap."""
        ours = self.table is None or self.table == table
        return ours and self.after_seq <= after_seq and until_seq <= self.until_seq


REMEMBERED = 16
"""So many finished batches are remembered with their token, that a repeated ack or rollback is answered as done."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class _Part(BaseModel):
    # A key that this version does not know would be lost by read-modify-write: refuse it.
    model_config = ConfigDict(extra="forbid")


class SourceIdentity(_Part):
    """The server, and the piece of its history, that store and cursors belong to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server_uuid: str
    flavor: Literal["mysql", "mariadb"]
    base_name: str
    """``binlog`` for ``binlog.000012``."""
    epoch: int = Field(ge=0)
    start_gtid: str | None = None
    """The GTID set from which reading began; None where the source could not tell."""


class HistoryMark(_Part):
    """What tells that a source still has the history up to a transaction when the store is lost: its GTID, and when the
    binlog file that it lies in was created."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int = Field(ge=1)
    gtid: str | None = None
    file_created_s: int | None = Field(default=None, ge=0)
    """Seconds since 1970, by the file's format description; None where the batch had no bytes of that file."""


class Outstanding(_Part):
    """A batch that was handed out and is neither acked nor rolled back."""

    batch: int = Field(ge=1)
    first_seq: int
    last_seq: int
    after_seq: int
    """The subscriber's position before the batch, exclusive."""
    owner: str
    token: str
    expires: AwareDatetime
    replaced: list[str] = []
    """Former tokens, so that an error can tell a replaced token from a wrong one."""


class Finished(_Part):
    """How a batch ended, and the token that ended it."""

    batch: int
    token: str
    outcome: Literal["acked", "rolled_back"]


class Subscription(_Part):
    """One reader of the store: its cursor and its batches, in their order."""

    filter: str | None = None
    acked_seq: int = Field(default=0, ge=0)
    """Everything up to here is done; 0 at the beginning."""
    next_batch: int = Field(default=1, ge=1)
    """Batch ids only grow, over rollbacks too."""
    outstanding: list[Outstanding] = []
    finished: list[Finished] = []
    since_seq: int | None = Field(default=None, ge=0)
    """Where the subscriber began, exclusive: it got every later transaction, but for its :attr:`gaps`. None in what
    format version 1 wrote: not known."""
    gaps: list[Gap] = []
    """Gaps that were accepted, in the order in which that was said."""
    tables: dict[str, RecordText] = {}
    """The lake's tables as of the last ack, by ``db.table``; see :meth:`table`."""
    mark: HistoryMark | None = None
    """Of the last transaction that was acked; a filter may have moved the cursor on since."""

    def position(self) -> int:
        """Everything up to here was acked, or came before the subscriber began."""
        return max(self.acked_seq, self.since_seq or 0)

    def table(self, name: str) -> TableRecord | None:
        """The record of a table in the lake; None where no ack has written one."""
        text = self.tables.get(name)
        return None if text is None else TableRecord.of(text)

    def has_accepted(self, after_seq: int, until_seq: int, table: str | None = None) -> bool:
        """Whether an accepted gap says that these transactions of the table (None: of all tables) may be missing."""
        return any(gap.covers(after_seq, until_seq, table) for gap in self.gaps)

    def start_seq(self) -> int:
        """Where the next batch begins, exclusive: the end of the latest outstanding one, else the cursor."""
        return self.outstanding[-1].last_seq if self.outstanding else self.acked_seq

    def find(self, batch: int) -> Outstanding | None:
        """An outstanding batch by its id."""
        return next((o for o in self.outstanding if o.batch == batch), None)

    def ended(self, batch: int) -> Finished | None:
        """How a batch ended, if that is still remembered."""
        return next((f for f in reversed(self.finished) if f.batch == batch), None)

    def add(self, entry: Outstanding) -> None:
        """Append a batch; a given id lifts the counter. Raises BatchError for an id or a range that is not new."""
        latest = self.outstanding[-1].batch if self.outstanding else 0
        if entry.batch <= latest:
            raise BatchError(f"batch {entry.batch} is not newer than the outstanding batch {latest}")
        if entry.after_seq < self.start_seq():
            raise BatchError(f"batch {entry.batch} begins after {entry.after_seq}, before {self.start_seq()}")
        self.outstanding.append(entry)
        self.next_batch = max(self.next_batch, entry.batch + 1)

    def require_first(self, batch: int, doing: str) -> Outstanding:
        """The batch, if it is the first outstanding one. Raises BatchOrderError naming both, BatchError if unknown."""
        entry = self.require(batch)
        first = self.outstanding[0]
        if entry is not first:
            raise BatchOrderError(
                f"batch {batch} cannot be {doing}: batch {first.batch} is due first",
                remedy=f"Ack or roll back batch {first.batch} before it.",
            )
        return entry

    def require(self, batch: int) -> Outstanding:
        """The outstanding batch. Raises BatchError if there is none of this id, saying what is known about it."""
        entry = self.find(batch)
        if entry is not None:
            return entry
        done = self.ended(batch)
        if done is not None:
            what = f"batch {batch} was {done.outcome.replace('_', ' ')} already"
        else:
            what = f"batch {batch} is not outstanding"
        known = ", ".join(str(o.batch) for o in self.outstanding)
        raise BatchError(what, remedy=f"Outstanding: {known}." if known else "No batch is outstanding.")

    def remove(self, batch: int) -> Outstanding:
        """Take away the first outstanding batch. Raises BatchOrderError for another one: data would be lost."""
        entry = self.require_first(batch, "removed")
        del self.outstanding[0]
        return entry

    def cut(self, batch: int) -> list[Outstanding]:
        """Take away a batch and all later ones; the cursor stays, so that they are handed out again."""
        index = self.outstanding.index(self.require(batch))
        gone = self.outstanding[index:]
        del self.outstanding[index:]
        return gone

    def remember(self, entry: Outstanding, outcome: Literal["acked", "rolled_back"]) -> None:
        """Note how a batch ended."""
        self.finished = [*self.finished, Finished(batch=entry.batch, token=entry.token, outcome=outcome)][-REMEMBERED:]


class State(_Part):
    """All that a meta holds of one destination."""

    destination: str | None = None
    source: SourceIdentity | None = None
    subscriptions: dict[str, Subscription] = {}

    def subscription(self, name: str) -> Subscription:
        """Raises UsageError for a name that nobody subscribed."""
        found = self.subscriptions.get(name)
        if found is None:
            known = ", ".join(sorted(self.subscriptions))
            raise UsageError(
                f"there is no subscriber {name!r}",
                remedy=f"There are: {known}." if known else "The first `cdc apply` or `cdc batch get` subscribes.",
            )
        return found


def check_name(name: str) -> str:
    """A subscriber's name is a folder's name, too. Raises UsageError."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot be the name of a subscriber",
            remedy="Use up to 64 letters, digits, underscores, dashes and dots, not beginning with a dot.",
        )
    return name
