"""Files in object stores, as this process reaches them: by fsspec, with the access that the configuration names.

The configuration of a destination registers its lake when it is loaded. Other URIs get their credentials as fsspec's
package for the protocol finds them, mostly in the environment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cdc.base.errors import CdcError, ConfigError, RetryableError

Options = Callable[[], Mapping[str, Any]]
"""Returns the options of fsspec's file system for a lake. They hold secrets, so they are read at each use."""

_lock = threading.Lock()
_lakes: dict[str, Options] = {}


def register(target: str, options: Options) -> None:
    """Registers the options for the URI of a lake and everything below it."""
    with _lock:
        _lakes[target.rstrip("/")] = options


def filesystem(uri: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URI, and the URI's path in it. Raises ConfigError if no installed package
    supports the protocol, or if a secret is missing."""
    try:
        from fsspec.core import url_to_fs

        with _lock:
            lakes = [lake for lake in _lakes if uri == lake or uri.startswith(f"{lake}/")]
            options = _lakes[max(lakes, key=len)] if lakes else dict
        files, path = url_to_fs(uri, **options())
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the object store cannot be read: {error}",
            place=uri,
            remedy="Install towpath[s3], or fsspec and its package for the protocol: gcsfs for gs://, adlfs for "
            "abfss://.",
        ) from None
    return files, str(path)


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turns all errors of an object store inside the block into RetryableError, except FileNotFoundError: each package
    has its own types."""
    try:
        yield
    except (CdcError, FileNotFoundError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise RetryableError(f"the object store cannot be read: {reason}", place=uri) from error


def names_below(uri: str) -> list[str]:
    """Returns the names in a folder of an object store, sorted; none if there is no such folder. Raises ConfigError,
    RetryableError."""
    files, path = filesystem(uri)
    with reading(uri):
        files.invalidate_cache()
        try:
            listed = files.ls(path, detail=False)
        except FileNotFoundError:
            return []
    return sorted(str(name).rstrip("/").rpartition("/")[2] for name in listed)


def remove_folder(uri: str) -> None:
    """Removes a folder of an object store with everything in it; it may be gone already. Raises ConfigError,
    RetryableError."""
    files, path = filesystem(uri)
    with reading(uri), suppress(FileNotFoundError):
        files.invalidate_cache()
        files.rm(path, recursive=True)


def can_put_if_absent(uri: str) -> bool:
    """Whether the object store refuses to replace an object that must be new. Writes and removes an object below the
    URI. Raises ConfigError, RetryableError."""
    import secrets

    files, path = filesystem(uri)
    name = f"{path.rstrip('/')}/_towpath_check_{secrets.token_hex(8)}"
    with reading(uri):
        try:
            if not _put_if_absent(files, name, b"first"):
                raise RetryableError("the object store refuses a name that is free", place=uri)
            return not _put_if_absent(files, name, b"second")
        finally:
            with suppress(FileNotFoundError):
                files.rm_file(name)


def _put_if_absent(files: Any, name: str, content: bytes) -> bool:
    """Whether the object has this content after the put: a put whose answer was lost is repeated, and meets itself."""
    try:
        files.pipe_file(name, content, mode="create")
    except Exception as error:  # noqa: BLE001 - each package has its own error for a name that is taken
        try:
            present = files.cat_file(name)
        except FileNotFoundError:
            raise error from None
        return bool(present == content)
    return True
