"""Failover of the source: capture goes on with another server, in a new epoch.

Another server has other binlog files and positions, so the position is found by the GTIDs that the store has read
(:mod:`cdc.source.resume`). The new epoch is in the meta before its first transaction is in the store, with the position
and the overlap; a capture that is killed in between finds both there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cdc.base.errors import IdentityError
from cdc.base.log import get_logger
from cdc.binlog.entry import format_gtid
from cdc.binlog.gtids import GtidSet, format_state, parse_state, show_state, state_name
from cdc.binlog.positions import BinlogPosition, format_seq, make_seq, split_seq
from cdc.capture.proof import Proof, read_store_end
from cdc.config import DestinationConfig
from cdc.meta import Meta, SourceIdentity
from cdc.meta.state import EpochStart
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.resume import LastStored, Resume, find_resume, require_all
from cdc.source.server import Connection, ServerInfo, Source
from cdc.store.formats.gtids import gtids_until

log = get_logger(__name__)


@dataclass(frozen=True)
class Overlap:
    """The transactions at the beginning of an epoch that the store has from the epoch before."""

    gtids: GtidSet
    end: BinlogPosition
    """The end of the last one."""
    flavor: Literal["mysql", "mariadb"]

    @classmethod
    def of(cls, identity: SourceIdentity) -> Overlap | None:
        """Returns the overlap of an epoch; None if it has none."""
        began = identity.began
        if began is None or began.overlap is None or began.overlap_file is None:
            return None
        end = BinlogPosition(began.overlap_file, began.overlap_pos)
        return cls(parse_state(began.overlap, identity.flavor), end, identity.flavor)

    def has(self, gtid: str) -> bool:
        """Whether the transaction with this GTID, as the server prints it, is one of them."""
        return state_name(gtid, self.flavor) in self.gtids

    def is_after(self, position: BinlogPosition) -> bool:
        """Whether some of them may come after a position."""
        return (position.file_number, position.pos) < (self.end.file_number, self.end.pos)


def needs_failover(info: ServerInfo, captured: SourceIdentity, last_seq: int) -> bool:
    """Whether the server is another one than the one that the store's end was captured from."""
    return info.server_uuid != captured.server_uuid or split_seq(last_seq).epoch < captured.epoch


def begin_epoch(
    config: DestinationConfig,
    conn: Source,
    info: ServerInfo,
    meta: Meta,
    last_seq: int,
    resume: Resume | None = None,
) -> SourceIdentity | None:
    """Returns the identity of an epoch of which nothing is stored yet: a new one if the server is another one than
    before, or the one that an earlier call has begun. None if the store goes on in its epoch.

    Raises what :func:`cdc.source.resume.find_resume` raises; IdentityError if the store's GTIDs are not known.
    """
    if isinstance(conn, BinlogFiles):  # it takes nobody's place: its files go on, or are refused
        return None
    captured = meta.source()
    if captured is None or captured.flavor != info.flavor or not needs_failover(info, captured, last_seq):
        return None
    if _is_begun(info, captured, last_seq):
        require_all(conn, captured.flavor, _gtids(config, captured, last_seq), f"source {place_of(config.source)}")
        return captured
    gtids = _gtids(config, captured, last_seq)
    resume_point = resume or find_resume(config.source, conn, captured.flavor, gtids, _last_stored(config))
    return move(config, info, meta, last_seq, gtids, resume_point)


def find_move(
    config: DestinationConfig, conn: Connection, info: ServerInfo, captured: SourceIdentity, last_seq: int
) -> Resume | None:
    """Returns the position at which capture would go on with this server; None if it is the one that is captured.
    Raises what :func:`begin_epoch` raises."""
    if (
        captured.flavor != info.flavor
        or not needs_failover(info, captured, last_seq)
        or _is_begun(info, captured, last_seq)
    ):
        return None
    gtids = _gtids(config, captured, last_seq)
    return find_resume(config.source, conn, captured.flavor, gtids, _last_stored(config))


def prove_failover(
    config: DestinationConfig, conn: Connection, info: ServerInfo, captured: SourceIdentity, last_seq: int
) -> tuple[Proof, BinlogPosition]:
    """Makes the checks of :func:`begin_epoch` without changing anything, and returns the position from which capture
    would go on."""
    gtids = _gtids(config, captured, last_seq)
    if _is_begun(info, captured, last_seq):
        require_all(conn, captured.flavor, gtids, f"source {place_of(config.source)}")
        assert captured.began is not None
        position = BinlogPosition(captured.began.file, captured.began.pos)
    else:
        position = find_resume(config.source, conn, captured.flavor, gtids, _last_stored(config)).position
    proved = f"another server answers, which has all GTIDs of the store; its next transaction begins at {position}"
    return Proof((proved,)), position


def move(
    config: DestinationConfig,
    info: ServerInfo,
    meta: Meta,
    last_seq: int,
    gtids: GtidSet,
    resume: Resume,
    lost: GtidSet | None = None,
) -> SourceIdentity:
    """Begins a new epoch with the server. ``gtids`` are those of the store, without the ``lost`` ones."""
    former = meta.source()
    assert former is not None
    epoch = max(former.epoch, split_seq(last_seq).epoch) + 1
    make_seq(epoch, resume.position.file_number, 0)  # raises if there are too many
    began = EpochStart(
        file=resume.position.file,
        pos=resume.position.pos,
        after_seq=last_seq,
        time=datetime.now(UTC).replace(microsecond=0),
        overlap=format_state(resume.overlap, former.flavor) or None,
        overlap_file=None if resume.overlap_end is None else resume.overlap_end.file,
        overlap_pos=0 if resume.overlap_end is None else resume.overlap_end.pos,
        lost=None if lost is None else format_state(lost, former.flavor),
    )
    identity = SourceIdentity(
        server_uuid=info.server_uuid,
        flavor=info.flavor,
        base_name=resume.base_name,
        epoch=epoch,
        start_gtid=format_state(gtids, former.flavor),
        address=place_of(config.source),
        began=began,
        former=(*former.former, former.model_copy(update={"former": ()})),
    )
    with meta.change() as state:
        if state.source != former:
            raise IdentityError("the source of this destination was changed meanwhile", place=meta.place)
        state.source = identity
    log.warning(
        "capture moved to another server",
        server=place_of(config.source),
        server_uuid=info.server_uuid,
        former=former.server_uuid,
        after=format_seq(last_seq),
        position=str(resume.position),
        epoch=epoch,
        overlap=show_state(resume.overlap, former.flavor) or None,
    )
    return identity


def store_gtids(config: DestinationConfig, captured: SourceIdentity, last_seq: int) -> GtidSet:
    """Returns the GTIDs of all transactions that the store has read. Raises IdentityError if they are not known."""
    gtids = gtids_until(config.store.path, captured.flavor, last_seq)
    if gtids is None:
        raise IdentityError(
            f"another server answers than the one that the store was captured from ({captured.server_uuid}), and "
            "capture cannot go on there: the GTIDs of the store are not known, because the former server had none",
            place=f"source {place_of(config.source)}",
            remedy="Connect to the former server. If it does not exist any more, capture this one as a new destination "
            "with its own store, meta and target.",
        )
    return gtids


def _gtids(config: DestinationConfig, captured: SourceIdentity, last_seq: int) -> GtidSet:
    if captured.began is not None and last_seq == captured.began.after_seq and captured.start_gtid is not None:
        return parse_state(captured.start_gtid, captured.flavor)
    return store_gtids(config, captured, last_seq)


def _is_begun(info: ServerInfo, captured: SourceIdentity, last_seq: int) -> bool:
    """Whether the epoch was begun with this server after the store's end. If the store has lost its end since then,
    another epoch has to be begun."""
    began = captured.began
    return info.server_uuid == captured.server_uuid and began is not None and last_seq >= began.after_seq


def _last_stored(config: DestinationConfig) -> LastStored | None:
    end = read_store_end(config.store.path)
    entry = None if end is None or end.transaction is None else end.transaction.entry
    gtid = None if entry is None else format_gtid(entry)
    if entry is None or gtid is None:
        return None
    return LastStored(gtid, int(entry["commit_time_us"]) // 1_000_000)
