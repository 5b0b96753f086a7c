"""The sources of secrets: environment variables, files and commands that the keys of a section name.

A section declares a secret once, as in ``password = Secret("source", "the password of {0.user!r}")``. The secret knows
its keys (``password_env``, ``password_file`` and ``password_command``, those of them that the section has), and reading
the attribute returns a :class:`SecretSource`. :mod:`cdc.config.secrets` makes keys, tokens and credentials of it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import ConfigError, SourceUnavailableError

if TYPE_CHECKING:
    from pydantic import BaseModel

_COMMAND_S = 30
"""Limit for a command that prints a secret."""
MAKE_ONE = "Make one with: openssl rand -hex 32"


@dataclass(frozen=True)
class SecretSource:
    """The place of a secret. It is read anew at each call, and the secret is in no message."""

    what: str
    """The secret as messages name it: "the key of hash"."""
    key: str = ""
    """The key that names the place, with its sections: ``apply.hash_key_env``. Empty if none is given."""
    value: str | Path | tuple[str, ...] | None = None
    """The value of that key: the name of an environment variable, a file, or a command with its arguments."""

    @property
    def is_given(self) -> bool:
        """Whether the configuration names a place."""
        return self.value is not None

    def below(self, section: str, what: str) -> SecretSource:
        """Returns the source for messages about a section that is in ``section``: an item of a list or of a mapping."""
        return replace(self, key=f"{section}.{self.key}", what=what)

    def error(self, problem: str, remedy: str = "") -> ConfigError:
        """Returns the error for a secret that cannot be used. The remedy says where to write the secret by default."""
        if not remedy and isinstance(self.value, str):
            remedy = f"Set {self.value} to {self.what}."
        elif not remedy and isinstance(self.value, Path):
            remedy = f"Write {self.what} into its first line, readable by the user who runs cdc."
        return ConfigError(problem, place=self.key, remedy=remedy or "Run it by hand.")

    def content(self) -> bytes | None:
        """Returns the variable's value, the file's content or the command's output; None if the configuration names no
        place. Raises ConfigError; SourceUnavailableError if the command fails."""
        if self.value is None:
            return None
        if isinstance(self.value, tuple):
            return self._output(self.value)
        if isinstance(self.value, str):
            value = os.environ.get(self.value)
            if value is None:
                raise self.error(f"the environment variable {self.value} is not set")
            return os.fsencode(value)
        try:
            return self.value.read_bytes()
        except OSError as error:
            raise self.error(f"{self.value} cannot be read: {error.strerror}") from None

    def text(self) -> str | None:
        """Returns the variable's value, or the first line of the file or of the command's output; None if the
        configuration names no place. Raises ConfigError; SourceUnavailableError if the command fails."""
        content = self.content()
        if content is None:
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise self.error(f"{self._name} does not hold UTF-8 text") from None
        if isinstance(self.value, str):
            return text
        line = text.splitlines()[0] if text else ""
        if not line and isinstance(self.value, tuple):
            raise self.error(f"{self._name} does not print {self.what}", "Make it print the secret as its first line.")
        return line

    @property
    def _name(self) -> str:
        if isinstance(self.value, tuple):
            return self.value[0]
        return f"the environment variable {self.value}" if isinstance(self.value, str) else f"{self.value}"

    def _output(self, command: Sequence[str]) -> bytes:
        """Returns the standard output of a command. Its standard error is that of this process."""
        problem = f"has not printed {self.what} within {_COMMAND_S} s"
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_COMMAND_S)
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            raise self.error(
                f"{self._name} cannot be run: {error.strerror}",
                "Give the program's path, and see that the user who runs cdc may execute it.",
            ) from None
        else:
            if done.returncode == 0:
                return done.stdout
            problem = f"ended with code {done.returncode} and did not print {self.what}"
        raise SourceUnavailableError(f"{self._name} {problem}", place=self.key, remedy="Run it by hand.")


class Secret:
    """Declares a secret of a section. Its attribute is a :class:`SecretSource`."""

    def __init__(
        self, section: str, what: str, *, prefix: str | None = None, required: bool = False, instead: Sequence[str] = ()
    ) -> None:
        """``section``: the path of the section, empty if it may stand in several places. ``what``: the secret as
        messages name it, where ``{0}`` stands for the section. ``prefix``: what its keys begin with, by default the
        attribute's name. ``required``: whether one of the keys must be given. ``instead``: keys that replace them."""
        self._path, self._what, self._prefix = f"{section}." if section else "", what, prefix
        self._required, self._instead = required, instead

    def __set_name__(self, owner: type, name: str) -> None:
        if self._prefix is None:
            self._prefix = f"{name}_"

    def __get__(self, section: BaseModel, owner: type) -> SecretSource:
        what = self._what.format(section)
        for key in self.keys(owner):
            value = getattr(section, key)
            if value is not None:
                return SecretSource(what, f"{self._path}{key}", value)
        return SecretSource(what)

    def keys(self, model: Any) -> list[str]:
        """Returns the keys by which a section, given by its class, names the place of the secret."""
        keys = (f"{self._prefix}{kind}" for kind in ("env", "file", "command"))
        return [key for key in keys if key in model.model_fields]

    def check(self, section: BaseModel) -> None:
        """Checks that a section names one place at most. Raises ValueError."""
        keys = [*self.keys(type(section)), *self._instead]
        set_keys = [key for key in keys if getattr(section, key) is not None]
        if len(set_keys) > 1:
            raise ValueError(f"{' and '.join(set_keys)} contradict each other; keep one of them")
        if self._required and not set_keys:
            raise ValueError(f"needs one of {', '.join(keys)}")
