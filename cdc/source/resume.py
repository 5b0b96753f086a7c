"""Finds the position at which capture goes on after a failover: on a server with other binlog files, by GTIDs.

The new server must have every transaction of the store, and must still have every other one of its own in its binlog.
Then its binlog is read from the first transaction on that the store lacks. A replica may have committed in another
order than its master did, so transactions of the store may follow: they are the *overlap*, which capture leaves out.

Histories of both products are sets here (:func:`cdc.binlog.gtids.parse_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.base.errors import IdentityError, LostTransactionsError, SourceRefusedError, SourceUnavailableError
from cdc.base.log import get_logger
from cdc.base.units import human_bytes
from cdc.binlog.gtids import Flavor, GtidSet, MariadbGtid, parse_state, show_state, state_name, state_of
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.history import executed_gtids, purged_gtids
from cdc.source.locate import FileStarts, last_fitting
from cdc.source.scan import FileStart, ScannedTransaction, read_file_start, read_transactions
from cdc.source.server import (
    Connection,
    Source,
    binlog_files,
    is_replicating,
    read_uuid,
    refuses_writes,
    variables,
)

log = get_logger(__name__)

_LARGE_BYTES = 64 << 20
_MAX_ERRANT = 1000


@dataclass(frozen=True)
class LastStored:
    """A transaction near the end of the store, to recognise it on the new server."""

    gtid: str
    """The GTID as the server prints it."""
    commit_s: int
    """Commit time in seconds since 1970."""


@dataclass(frozen=True)
class Resume:
    """The position on a server from which capture goes on."""

    position: BinlogPosition
    base_name: str
    overlap: GtidSet
    """The transactions after the position that the store has already."""
    overlap_end: BinlogPosition | None
    """The end of the last one; None if there is none."""


def has_gtids(conn: Source, flavor: Flavor) -> bool:
    """Whether the server's transactions have GTIDs."""
    if isinstance(conn, BinlogFiles):
        return conn.executed_gtids(flavor) is not None
    return flavor == "mariadb" or variables(conn, ("gtid_mode",)).get("gtid_mode", "OFF").upper().startswith("ON")


def gtids_before(source: SourceConfig, conn: Source, flavor: Flavor, position: BinlogPosition) -> GtidSet | None:
    """Returns the GTIDs of all transactions before a position; None if the server has no GTIDs. Reads the position's
    binlog file up to it.

    Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError.
    """
    if not has_gtids(conn, flavor):
        return None
    if position.pos > _LARGE_BYTES:
        log.info("reading the binlog file for its GTIDs", file=position.file, size=human_bytes(position.pos))
    purged = purged_gtids(conn)
    seen = _Seen(flavor, purged | gtids_before_file(read_file_start(source, position.file)))
    if position.pos > 4:
        for transaction in read_transactions(source, position.file):
            if transaction.begin.file != position.file or transaction.begin.pos >= position.pos:
                break
            seen.add(transaction)
    return seen.set()


def gtids_in(source: SourceConfig, flavor: Flavor, file: str) -> GtidSet:
    """Returns the GTIDs of all transactions before the end of a binlog file. Reads the file.

    Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError.
    """
    seen = _Seen(flavor, gtids_before_file(read_file_start(source, file)))
    for transaction in read_transactions(source, file):
        if transaction.begin.file != file:
            break
        seen.add(transaction)
    return seen.set()


def find_resume(
    source: SourceConfig, conn: Connection, flavor: Flavor, stored: GtidSet, last: LastStored | None = None
) -> Resume:
    """Returns the position of the first transaction that is not in ``stored``, the GTIDs of the store. ``last`` is
    compared by its time where the GTIDs of unrelated servers may be the same (MariaDB).

    Raises LostTransactionsError if the server lacks transactions and will not get them; SourceUnavailableError if it
    is a replica that may still apply them; SourceRefusedError if it has purged transactions that are not known, or
    wrote errant ones; IdentityError if its history is an unrelated one.
    """
    place = f"source {place_of(source)}"
    if not has_gtids(conn, flavor):
        raise SourceRefusedError(
            "another server answers, and it writes no GTIDs (gtid_mode is OFF), by which capture could go on there",
            place=place,
            remedy="Connect to the former server, or set gtid_mode=ON on all servers before a failover.",
        )
    require_all(conn, flavor, stored, place)
    files = [file.name for file in binlog_files(conn)]
    starts = FileStarts(source)
    purged = purged_gtids(conn)
    _require_readable(purged | gtids_before_file(starts[files[0]]), stored, flavor, place)

    def begins_within(name: str) -> bool:
        before = purged | gtids_before_file(starts[name])
        return before <= stored and before != stored

    file = last_fitting(files, begins_within) or files[0]
    scan = ResumeScan(flavor, stored, read_uuid(conn), purged | gtids_before_file(starts[file]), last, place)
    for transaction in read_transactions(source, file):
        if scan.ends_with(transaction):
            break
    scan.require_no_errant()
    return Resume(
        scan.position or scan.end or BinlogPosition(file, 4),
        files[-1].rpartition(".")[0],
        scan.overlap,
        scan.overlap_end,
    )


def require_all(conn: Connection, flavor: Flavor, stored: GtidSet, place: str) -> None:
    """Raises IdentityError, LostTransactionsError or SourceUnavailableError unless the server has executed and logged
    all of the GTIDs."""
    executed = parse_state(executed_gtids(conn, flavor) or "", flavor)
    missing = stored - executed
    if not missing:
        return
    if not stored & executed:
        raise IdentityError(
            "another server answers, and it has none of the store's transactions: "
            f"{show_state(stored, flavor)} are stored, it has executed {show_state(executed, flavor) or 'none'}",
            place=place,
            remedy="Connect to the former server or to a replica of it; or capture this one as a new destination with "
            "its own store, meta and target.",
        )
    text = f"{missing.count} of the store's transactions are missing there: {show_state(missing, flavor)}"
    if is_standby(conn):
        raise SourceUnavailableError(
            f"{text}. It is a replica or read-only, and may still get them",
            place=place,
            remedy="Capture waits and tries again. If they are lost, promote the server (stop its replication and "
            "switch read_only off); capture then says how to go on.",
        )
    raise LostTransactionsError(
        f"the former server had transactions that this one never got: {text}. They are in the store, and may be in the "
        "lake",
        place=place,
        remedy="If the former server still runs or can be restarted, let this one get them from it. Otherwise accept "
        "the loss with `cdc failover --accept-loss`: the tables that these transactions changed are then loaded anew "
        "(see docs/how-to/failover.md).",
        lost=dict(missing.sources()),
    )


def is_standby(conn: Connection) -> bool:
    """Whether the server applies the changes of another one, or refuses writes."""
    try:
        return refuses_writes(conn) or is_replicating(conn)
    except SourceRefusedError:  # the privilege REPLICATION CLIENT is missing; whoever waits loses nothing
        return True


def _require_readable(first: GtidSet, stored: GtidSet, flavor: Flavor, place: str) -> None:
    unread = first - stored
    if unread:
        raise SourceRefusedError(
            f"the server has {unread.count} transactions that the store lacks and that its binlog no longer has: "
            f"{show_state(unread, flavor)}. They were purged before they were read, or the server wrote them on its "
            "own while it was a standby (errant transactions)",
            place=place,
            remedy="Use a standby that has them in its binlog or never had them, or load the tables anew in a new "
            "destination. Keep binlogs longer on standbys (binlog_expire_logs_seconds).",
        )


class _Seen:
    """A growing set of GTIDs, to which transactions are added in the order of the binlog."""

    def __init__(self, flavor: Flavor, before: GtidSet) -> None:
        self._flavor = flavor
        self._before = before
        self._runs: dict[str, list[tuple[int, int]]] = {}

    def add(self, transaction: ScannedTransaction) -> None:
        gtid = transaction.gtid
        if isinstance(gtid, MariadbGtid):
            self._runs[f"{gtid.domain}-{gtid.server}"] = [(1, gtid.number)]
        elif gtid is not None:
            name, _, text = gtid.rpartition(":")
            number, runs = int(text), self._runs.setdefault(name, [])
            if runs and runs[-1][1] + 1 == number:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))

    def set(self) -> GtidSet:
        return self._before | GtidSet(self._runs)


class ResumeScan:
    """One pass over a server's transactions, which finds the first one that is not known, and the overlap after it."""

    def __init__(
        self, flavor: Flavor, stored: GtidSet, uuid: str, before: GtidSet, last: LastStored | None, place: str
    ) -> None:
        self._flavor, self._stored, self._uuid, self._place = flavor, stored, uuid, place
        self._seen = _Seen(flavor, before)
        self._last = last
        self._domains = _last_numbers(stored) if flavor == "mariadb" else {}
        self._suspects: list[str] = []
        self._errant: list[str] = []
        self._pending: dict[str, int] = {}
        """For each source of GTIDs the number of stored transactions that are still to come; for MariaDB the number
        of the last one."""
        self.position: BinlogPosition | None = None
        """The beginning of the first unknown transaction."""
        self.end: BinlogPosition | None = None
        """The end of the known transactions before it."""
        self.overlap = GtidSet()
        self.overlap_end: BinlogPosition | None = None

    def ends_with(self, transaction: ScannedTransaction) -> bool:
        """Takes the next transaction. Returns whether the rest need not be looked at."""
        gtid = transaction.gtid
        if gtid is None:  # from before GTIDs were switched on, or after they were switched off
            return self._ends_unknown(transaction, "")
        text = str(gtid)
        name = state_name(text, self._flavor)
        if name not in self._stored:
            return self._ends_unknown(transaction, name)
        self._compare(text, transaction)
        if self.position is None:
            self._seen.add(transaction)
            self.end = transaction.end
            return False
        source, _, number = name.rpartition(":")
        self.overlap_end = transaction.end
        self._errant += self._suspects
        self._suspects = []
        if self._flavor == "mariadb":
            if self._pending.get(source) == int(number):
                del self._pending[source]
        elif source in self._pending:
            self._pending[source] -= 1
            if not self._pending[source]:
                del self._pending[source]
        return not self._pending

    def _ends_unknown(self, transaction: ScannedTransaction, name: str) -> bool:
        if self.position is None:
            pending = self._stored - self._seen.set()
            if not name and pending:
                self.end = transaction.end
                return False
            self.position = transaction.begin
            self.overlap = pending
            for source, intervals in pending.sources():
                last = intervals[-1][1]
                count = sum(high - low + 1 for low, high in intervals)
                self._pending[source] = last if self._flavor == "mariadb" else count
        if isinstance(transaction.gtid, MariadbGtid):
            if transaction.gtid.number <= self._domains.get(transaction.gtid.domain, 0):
                self._errant.append(str(transaction.gtid))
        elif name.partition(":")[0] == self._uuid and len(self._suspects) < _MAX_ERRANT:
            self._suspects.append(name)
        return not self._pending

    def _compare(self, gtid: str, transaction: ScannedTransaction) -> None:
        last = self._last
        if last is None or self._flavor != "mariadb" or gtid != last.gtid:
            return
        if transaction.time_us // 1_000_000 != last.commit_s:
            raise IdentityError(
                f"another server answers, and its transaction {gtid} is not the one in the store: it was committed at "
                f"another time (Unix time {transaction.time_us // 1_000_000}, and {last.commit_s} in the store)",
                place=self._place,
                remedy="Connect to the former server or to a replica of it; or capture this one as a new destination "
                "with its own store, meta and target.",
            )

    def require_no_errant(self) -> None:
        """Raises SourceRefusedError if the server wrote transactions of its own before some that the store has."""
        if not self._errant:
            if self.overlap_end is None:
                self.overlap = GtidSet()
            return
        errant = parse_state(",".join(self._errant), self._flavor) if self._flavor == "mysql" else None
        shown = show_state(errant, self._flavor) if errant is not None else ", ".join(self._errant[:5])
        raise SourceRefusedError(
            f"the server has {len(self._errant)} errant transactions: it wrote them on its own while it was a standby, "
            f"before others that the store has, so the former server never had them: {shown}",
            place=self._place,
            remedy="Use a standby without errant transactions, or load the tables anew from this one in a new "
            "destination. Set read_only (super_read_only) on standbys.",
        )


def gtids_before_file(start: FileStart) -> GtidSet:
    """Returns the GTIDs before a binlog file, as it says."""
    if start.last_gtids is not None:
        return state_of(start.last_gtids)
    return start.gtids or GtidSet()


def _last_numbers(state: GtidSet) -> Mapping[int, int]:
    """Returns the last number of each domain of MariaDB."""
    last_numbers: dict[int, int] = {}
    for name, intervals in state.sources():
        domain = int(name.partition("-")[0])
        last_numbers[domain] = max(last_numbers.get(domain, 0), intervals[-1][1])
    return last_numbers
