"""The methods that a client may call at ``cdc server``: one table, from which client and server are made.

A line of :data:`METHODS` makes a method of a contract an operation: its name is that of the operation, its arguments
are the keys of the request, its annotations say how arguments and result are written as JSON. The server calls the
method (:mod:`cdc.server.operations`, which adds the operations that are more than a method), and :func:`remote` is the
client's side. ``docs/formats/server.md`` describes all operations.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from cdc.base.errors import CdcError, UsageError
from cdc.base.validation import first_fault
from cdc.batches.manifest import TableResult
from cdc.batches.parking import ParkingRecords
from cdc.batches.protocol import Batches
from cdc.meta.state import check_name
from cdc.store.reader.check import FilesReport
from cdc.store.reader.store import Store

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NAMES = {"FilesReport": FilesReport, "TableResult": TableResult}
"""Names in annotations of the contracts whose modules import them for type checkers alone."""


class Arguments(BaseModel):
    """The arguments of an operation. Unknown keys are refused: a newer client must not be misunderstood."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscriber: str | None = None
    """The subscriber that the client means; null: whose token it has. It must be the same one."""


def arguments_of(function: Callable[..., Any], renamed: Mapping[str, str], without: Collection[str]) -> type[Arguments]:
    """Returns the model of a request by the parameters of a function, except those ``without``; ``renamed`` gives the
    keys of those that have another name."""
    hints = get_type_hints(function, localns=_NAMES, include_extras=True)
    fields: dict[str, Any] = {
        renamed.get(name, name): (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in without
    }
    return create_model(function.__name__, __base__=Arguments, **fields)


@dataclass(frozen=True)
class Method:
    """An operation that is a method of a contract."""

    function: Callable[..., Any]
    part: Literal["batches", "parking", "reader"]
    """The part of a destination at the server that has the method."""
    idempotent: bool = True
    """Whether a client may repeat it when the answer is lost."""
    done: type[CdcError] | tuple[()] = ()
    """The error of a call that is repeated although it was done; its answer is null then."""
    subscribes: bool = False
    """Whether it makes a subscription."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Keys of the request, by the arguments that have other names."""

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.function.__name__

    @functools.cached_property
    def arguments(self) -> type[Arguments]:
        """The model of a request."""
        return arguments_of(self.function, self.renamed, ("self", "subscriber"))

    @functools.cached_property
    def result(self) -> TypeAdapter[Any]:
        """The type of the result."""
        return TypeAdapter(get_type_hints(self.function, localns=_NAMES, include_extras=True)["return"])

    @functools.cached_property
    def _keys(self) -> dict[str, str]:
        """The key of each argument in a request."""
        return {name: self.renamed.get(name, name) for name in self._signature.parameters if name != "self"}

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def run(self, target: object, subscriber: str, arguments: Arguments) -> Any:
        """Calls the method, and returns its result as JSON."""
        values = {
            name: subscriber if name == "subscriber" else getattr(arguments, key) for name, key in self._keys.items()
        }
        return self.result.dump_python(getattr(target, self.name)(**values), mode="json")

    def request(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the request of a call, without optional arguments that are null: a server that does not know one of
        them understands the request. Raises UsageError for an argument that cannot be sent."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        values = {key: bound.arguments[name] for name, key in self._keys.items()}
        if "subscriber" in values:
            check_name(values["subscriber"])
        try:
            request = self.arguments.model_validate(values).model_dump(mode="json", include=set(values))
        except ValidationError as error:
            raise UsageError(first_fault(error), place=self.name) from None
        fields = self.arguments.model_fields
        return {key: value for key, value in request.items() if value is not None or fields[key].is_required()}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(Batches.ack, "batches"),
        Method(Batches.rollback, "batches"),
        Method(Batches.release, "batches"),
        Method(Batches.check, "batches"),
        Method(Batches.renew, "batches"),
        Method(Batches.next_seq, "batches"),
        Method(Batches.last_seq, "batches"),
        Method(Batches.subscribe, "batches", subscribes=True),
        Method(Batches.unsubscribe, "batches", idempotent=False),
        Method(Batches.accept_beginning, "batches", idempotent=False),
        Method(Batches.accept_tables, "batches", idempotent=False),
        Method(ParkingRecords.park, "parking"),
        Method(ParkingRecords.keep_from, "parking"),
        Method(ParkingRecords.unpark, "parking", done=UsageError),
        Method(ParkingRecords.release_parked, "parking"),
        Method(Store.require_kept, "reader", renamed={"after_seq": "seq"}),
        Method(Store.find_by_commit_time, "reader"),
        Method(Store.find_by_store_time, "reader"),
        Method(Store.seq_before, "reader"),
        Method(Store.check_files, "reader"),
    )
}
"""The operations that are methods, by name."""


def remote(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Returns the client's side of a method in :data:`METHODS`, for a class whose attribute ``connection`` is a
    :class:`cdc.wire.connection.Connection`. It raises what the method and the connection raise."""
    operation = METHODS[method.__name__]

    @functools.wraps(method, updated=())  # nor that it is abstract
    def ask(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        request = operation.request(*args, **kwargs)
        answer = self.connection.call(operation.name, request, idempotent=operation.idempotent)
        result: _R = operation.result.validate_python(answer)
        return result

    return ask
