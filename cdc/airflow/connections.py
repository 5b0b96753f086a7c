"""``source.connection``: asks Airflow for the user and the password of the source.

The host and the port stay those of ``source.url``: the URL names the server, and the connection the user.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from cdc.airflow.compat import AirflowNotFoundException, BaseHook
from cdc.base.errors import ConfigError
from cdc.config.secrets import Credentials, look_up_connections_with

CONNECTION_TYPES = ("towpath", "mysql", "mariadb", "generic")
"""Types of the connections that may name the source's user. Airflow stores ``mariadb://…`` and URLs without a scheme
under the last two."""


def airflow_connections() -> AbstractContextManager[None]:
    """Returns a context in which :mod:`cdc.config.secrets` asks Airflow for connections.

    Works inside a running task, and wherever ``AIRFLOW_CONN_<ID>`` is set.
    """
    return look_up_connections_with(connection_credentials)


def connection_credentials(connection: str) -> Credentials:
    """Returns user and password of an Airflow connection; the user is empty if the connection names none. Raises
    ConfigError if Airflow does not know the connection, it is of another type than a database's, or it holds no
    password."""
    try:
        hook = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        raise ConfigError(
            f"Airflow has no connection {connection!r}",
            place="source.connection",
            remedy=f"Add it: `airflow connections add {connection} --conn-type towpath --conn-login USER "
            "--conn-password PW`.",
        ) from None
    if hook.conn_type and hook.conn_type not in CONNECTION_TYPES:
        raise ConfigError(
            f"the Airflow connection {connection!r} is of type {hook.conn_type!r}",
            place="source.connection",
            remedy=f"Name a connection of type {' or '.join(CONNECTION_TYPES[:2])}.",
        )
    if not hook.password:
        raise ConfigError(
            f"the Airflow connection {connection!r} holds no password",
            place="source.connection",
            remedy="Add one to it.",
        )
    return Credentials(hook.login or "", hook.password)
