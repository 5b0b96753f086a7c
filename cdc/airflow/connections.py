"""``source.connection``: user and password of the source from an Airflow connection.

Host and port stay those of ``source.url``: they say which server it is, the connection only says who asks.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, urlsplit, urlunsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from cdc.config import DestinationConfig
from cdc.errors import ConfigError


def with_connection(config: DestinationConfig) -> DestinationConfig:
    """The configuration with the connection's user in ``source.url``, and its password in this process's environment
    (under the name that ``source.password_env`` then holds), so that programs started from here find it too.

    Without ``source.connection`` the configuration comes back as it is. Raises ConfigError when there is no such
    connection, or it holds no password. Works inside a running task, and wherever ``AIRFLOW_CONN_<ID>`` is set.
    """
    ident = config.source.connection
    if ident is None:
        return config
    place = f"{config.file}: source.connection"
    try:
        connection = BaseHook.get_connection(ident)
    except AirflowNotFoundException:
        raise ConfigError(
            f"there is no Airflow connection {ident!r}",
            place=place,
            remedy=f"Add it: `airflow connections add {ident} --conn-type mysql --conn-login USER --conn-password PW`.",
        ) from None
    if not connection.password:
        raise ConfigError(f"the Airflow connection {ident!r} holds no password", place=place, remedy="Add one to it.")
    variable = "CDC_CONNECTION_" + re.sub(r"[^A-Z0-9]", "_", ident.upper())
    os.environ[variable] = connection.password
    source = config.source.model_copy(
        update={
            "url": _with_user(config.source.url, connection.login),
            "password_env": variable,
            "connection": None,
        }
    )
    return config.model_copy(update={"source": source})


def _with_user(url: str, user: str | None) -> str:
    if not user:
        return url
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}@{address}"))
