"""The states of an archive: the newest one, who may write the next, and the objects that no state needs any more."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError, DamagedError, IdentityError
from cdc.base.units import iso_time
from cdc.copies.archive.format import (
    STATES,
    ArchiveState,
    How,
    SegmentList,
    SegmentRecord,
    Writer,
    parse_list,
    parse_state,
    render_state,
    state_name,
)
from cdc.copies.archive.objects import Objects, open_objects
from cdc.store.formats.archive_record import ArchiveRecord, record_of, write_record

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

KEPT_STATES = 20
"""The newest states that are kept. What only older ones name is removed."""
_CLAIM = (
    "If that store is gone for good, or is not to be archived, let this one go on with `cdc archive claim {name}`; "
    "else stop the capture of one of them."
)


@dataclass(frozen=True)
class Known:
    """A state with its list of segments."""

    state: ArchiveState
    segments: tuple[SegmentRecord, ...]


class Archive:
    """The archive of one destination, to read. Raises RetryableError if it is away, DamagedError, VersionError."""

    def __init__(self, config: DestinationConfig, objects: Objects | None = None) -> None:
        """Raises ConfigError if no archive is configured."""
        if config.archive_uri is None:
            raise ConfigError(
                "no archive is configured",
                place=str(config.file),
                remedy="Add store.archive with a URI, like s3://bucket/archive.",
            )
        self.destination = config.name
        self.uri = config.archive_uri
        self.objects = open_objects(self.uri) if objects is None else objects
        self._lists: dict[str, tuple[SegmentRecord, ...]] = {}

    def numbers(self) -> list[int]:
        """Returns the numbers of all states, in order."""
        names = (name.removesuffix(".json") for name in self.objects.names(STATES))
        return sorted(int(name) for name in names if name.isdecimal())

    def newest(self) -> Known | None:
        """Returns the newest state; None if the archive is empty."""
        numbers = self.numbers()
        return self.known(numbers[-1]) if numbers else None

    def existing(self) -> Known:
        """Returns the newest state. Raises ConfigError if the archive is empty."""
        newest = self.newest()
        if newest is None:
            raise ConfigError(
                "there is no archive of this destination", place=self.uri, remedy="Correct store.archive."
            )
        return newest

    def known(self, number: int) -> Known:
        """Returns a state by its number."""
        state = self.state(number)
        return Known(state, self.segments_of(state))

    def state(self, number: int) -> ArchiveState:
        """Returns a state without its list."""
        name = state_name(number)
        data = self.objects.read(name)
        place = self.objects.place(name)
        if data is None:
            raise DamagedError("this state of the archive is missing", place=place, remedy="Try again.")
        state = parse_state(data, place)
        if (state.destination, state.number) != (self.destination, number):
            raise DamagedError(
                f"is the state {state.number} of the destination {state.destination!r}",
                place=place,
                remedy="Give each destination a folder of its own, as store.archive does by itself.",
            )
        return state

    def segments_of(self, state: ArchiveState) -> tuple[SegmentRecord, ...]:
        """Returns the segments of a state."""
        ref = state.segments
        if ref is None:
            return ()
        if ref.sha256 not in self._lists:
            data = self.objects.get(ref.object, ref.bytes, ref.sha256)
            segment_list: SegmentList = parse_list(data, self.objects.place(ref.object))
            while len(self._lists) > KEPT_STATES:
                del self._lists[next(iter(self._lists))]
            self._lists[ref.sha256] = segment_list.segments
        return self._lists[ref.sha256]

    def objects_of(self, state: ArchiveState) -> set[str]:
        """Returns the names of all objects that a state needs."""
        objects = {ref.object for ref in state.files.values()}
        if state.segments is not None:
            objects.add(state.segments.object)
        for segment in self.segments_of(state):
            objects |= {segment.log.object, segment.index.object}
        return objects

    def remove_unneeded(self, newest: int) -> None:
        """Removes the states before the newest ones, and first the objects that only they need. A kill in between is
        made up for by the next call."""
        numbers = self.numbers()
        old = [number for number in numbers if number <= newest - KEPT_STATES]
        if not old:
            return
        needed: set[str] = set()
        for number in numbers:
            if number not in old:
                needed |= self.objects_of(self.state(number))
        for number in old:
            state = self.state(number)
            try:
                names = self.objects_of(state)
            except DamagedError:  # its list is gone, by a call that was killed before it removed the state
                names = {ref.object for ref in state.files.values()}
            for name in sorted(names - needed, key=_lists_last):
                self.objects.remove(name)
            self.objects.remove(state_name(number))


def _lists_last(name: str) -> tuple[bool, str]:
    """A list is needed until its segments are removed."""
    return name.startswith("lists/"), name


class Ownership:
    """The right of one store to write to its archive.

    The newest state names the session of its writer, and ``archive.json`` in the store names the store's own. A store
    whose session it is goes on, each process under a new session: of two copies of one store, the second is refused.
    Another store becomes the writer only by a decision: it was a standby and took over, or an operator says so.
    """

    def __init__(
        self, archive: Archive, store: Path, *, leadership: Callable[[], int], clock: Callable[[], datetime]
    ) -> None:
        """``leadership`` returns the number of the leadership epoch if the store is a master, else 0."""
        self._archive = archive
        self._store = store
        self._leadership = leadership
        self._clock = clock

    def record(self) -> ArchiveRecord:
        """Returns the store's record of this archive; an empty one if it is that of another archive."""
        return record_of(self._store, self._archive.uri)

    def require_writer(self, newest: Known | None) -> How:
        """Returns the way in which this store becomes the writer, or that it is one already. Raises IdentityError if
        another store is."""
        record, place = self.record(), self._archive.uri
        claim = _CLAIM.format(name=self._archive.destination)
        if newest is None:
            if record.number:
                raise IdentityError(
                    f"the archive is empty, and this store has copied {record.segments} segments to it: it was "
                    "removed, or this URI now leads elsewhere",
                    place=place,
                    remedy="Put the archive back, or correct store.archive. To begin a new archive there, run `cdc "
                    f"archive claim {self._archive.destination}`.",
                )
            return "first"
        writer = newest.state.writer
        if newest.state.number < record.number:
            raise IdentityError(
                f"the newest state of the archive is {newest.state.number}, and this store has written "
                f"{record.number}: states were removed, or an older copy of the archive was put in its place",
                place=place,
                remedy=f"Put the archive back. To go on with it as it is, run `cdc archive claim "
                f"{self._archive.destination}`: what the store still has and the archive lacks is copied again.",
            )
        if writer.session in (record.session, record.claiming):
            return "started"
        term = self._leadership()
        if 0 < writer.term < term:
            return "took over"
        raise IdentityError(
            f"another store writes to this archive: that of {writer.host}, since {iso_time(writer.since)} "
            f"({writer.how})",
            place=place,
            remedy=claim,
        )

    def claim(self, newest: Known | None, how: How) -> Known:
        """Writes a state by which this store is the writer, under a new session, and returns it. Raises IdentityError
        if another store was faster."""
        record = self.record()
        session = secrets.token_hex(16)
        before = None if newest is None else newest.state.writer.session
        mine = before if before is not None and before == record.claiming else record.session
        # The record first: whichever of the two sessions the archive has after a kill, it is this store's.
        record = replace(record, session=mine, claiming=session)
        write_record(self._store, record)
        now = self._clock()
        store = newest.state.writer.store if newest is not None and how == "started" else secrets.token_hex(16)
        writer = Writer(
            store=store,
            session=session,
            host=socket.gethostname(),
            pid=os.getpid(),
            term=self._leadership(),
            since=now,
            how=how,
        )
        number = 1 if newest is None else newest.state.number + 1
        if newest is None:
            state = ArchiveState(destination=self._archive.destination, number=number, time=now, writer=writer)
        else:
            state = newest.state.model_copy(update={"number": number, "time": now, "writer": writer})
        self.write(state)
        write_record(
            self._store,
            replace(
                record,
                session=session,
                claiming="",
                number=number,
                archived_seq=record.archived_seq if how == "started" else 0,
                segments=state.totals.segments,
                bytes=state.totals.bytes,
            ),
        )
        return Known(state, () if newest is None else newest.segments)

    def write(self, state: ArchiveState) -> None:
        """Creates the next state. Raises IdentityError if another store has written a state meanwhile."""
        objects = self._archive.objects
        # An old number is free again after its state was removed, so the newest one is looked at as well.
        is_new = objects.create(state_name(state.number), render_state(state))
        if is_new and self._archive.numbers()[-1:] == [state.number]:
            return
        newest = self._archive.newest()
        who = "" if newest is None else f": that of {newest.state.writer.host}, {newest.state.writer.how}"
        raise IdentityError(
            f"another store writes to this archive{who}",
            place=self._archive.uri,
            remedy=_CLAIM.format(name=self._archive.destination),
        )


def now_utc() -> datetime:
    """Returns the time of this machine's clock."""
    return datetime.now(UTC)
