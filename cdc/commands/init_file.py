"""The configuration file that ``cdc init`` writes: every section, with what a newcomer wants to know beside it."""

from __future__ import annotations

from dataclasses import dataclass

_TEMPLATE = """\
# Destination {name}: one source server, and what becomes of its changes.
# Relative paths are taken from the folder above this file's. ${{NAME}} is replaced from the environment.
# `cdc check {name}` tells whether all this works.

source:                                # {product}
  url: {url}
  {password}
  server_id: {server_id:<20}      # unique among the source's replicas; free when this file was written
  # Where capture begins when its store is empty:
{starts}
  #   snapshot   the tables as they are, then their changes: not there yet, so choose {choice}
  start: snapshot

tables:
  include:                             # regular expressions over db.table, matched whole
{include}
  exclude: []
  overrides: {{}}                        # by table, any key of `apply`: {{shop.log: {{mode: append}}}}

store:                                 # the relay log between capture and apply
  kind: file
  path: {store}
  flush: sync                          # a transaction is on disk before its position counts
  segment_bytes: 268435456
  retain: {{acked_for: 72h}}

meta:                                  # who reads the store, and how far
  kind: file
  path: {meta}

batch:                                 # what one run takes; a larger transaction is a batch of its own
  max_bytes: 268435456
  max_transactions: null
  max_row_events: null
  max_wait_s: 5
  lease_s: 3600

apply:
  mode: upsert                         # upsert: equal to SELECT; append: every change as a row
  target: {target}

spark:
  master: 'local[*]'                   # or a cluster's, for spark-submit
  remote: null                         # sc://host:15002: a Spark Connect server, which is warm already
  conf: {{}}
"""


_NOW = "  #   now        what changes from now on"
_STARTS = f"""\
  #   earliest   everything that the server's binlog still holds
{_NOW}
  #   {{file: binlog.000012, pos: 4}}"""


@dataclass(frozen=True)
class Answers:
    """What differs from one file to the next."""

    name: str
    url: str
    """Without the password."""
    password_in_environment: bool
    password_place: str
    """The environment variable's name, or that of the file beside this one."""
    server_id: int
    include: tuple[str, ...]
    target: str
    product: str
    has_row_metadata: bool
    """The server's binlog names columns. Where it does not, capture can only begin at ``now``."""


def render(answers: Answers) -> str:
    """The text of the file."""
    if answers.password_in_environment:
        password = f"password_env: {answers.password_place}    # the variable that holds the password"
    else:
        password = f"password_file: {quoted(answers.password_place)}    # beside this file; its first line counts"
    return _TEMPLATE.format(
        name=answers.name,
        product=answers.product,
        starts=_STARTS if answers.has_row_metadata else _NOW,
        choice="one of the others" if answers.has_row_metadata else "now",
        url=quoted(answers.url),
        password=password,
        server_id=answers.server_id,
        include="\n".join(f"    - {quoted(pattern)}" for pattern in answers.include),
        store=quoted(f"./data/{answers.name}/store"),
        meta=quoted(f"./data/{answers.name}/meta"),
        target=quoted(answers.target),
    )


def quoted(text: str) -> str:
    """A YAML string in single quotes, in which nothing but the quote itself is special."""
    return "'" + text.replace("'", "''") + "'"
