"""Records of numbers that kernels and Python share: the state of a kernel, and the rows of tables that kernels read.

A class lists its fields, and both sides write ``state.field``. A kernel takes a record as a pointer, so that
``rows[i].field`` is one load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
R_co = TypeVar("R_co", covariant=True)


if TYPE_CHECKING:  # NumPy's stubs let nobody derive a class
    _Base = object
else:
    _Base = np.record


class Records(Protocol[R_co]):
    """An array of records. Python may ask for a field of all of them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> R_co: ...
    @overload
    def __getitem__(self, index: str, /) -> Longs: ...


class Record(_Base):
    """The base class of records: each annotation of a class is a field of 64 bits. A field of several numbers has
    its size among the arguments of the class: ``class State(Record, tag=4)``."""

    numbers: Longs
    """All numbers of a record, one behind the other."""
    layout: ClassVar[np.dtype[np.void]]

    def __init_subclass__(cls, **sizes: int) -> None:
        super().__init_subclass__()
        inherited: Any = cls.__mro__[1]
        fields: dict[str, np.dtype[Any]] = {}
        if inherited is not Record:
            fields = {name: inherited.layout.fields[name][0] for name in inherited.layout.names[:-1]}
        for name in cls.__annotations__:
            if hasattr(Record, name):
                raise TypeError(f"{cls.__name__}.{name}: records have an attribute of this name")
            fields[name] = np.dtype((np.int64, (sizes[name],) if name in sizes else ()))
        *offsets, end = np.cumsum([0, *(field.itemsize for field in fields.values())]).tolist()
        fields["numbers"] = np.dtype((np.int64, (end // 8,)))
        cls.layout = np.dtype(
            (cls, {"names": list(fields), "formats": list(fields.values()), "offsets": [*offsets, 0]})
        )

    @classmethod
    def new(cls, **values: int) -> Self:
        """Returns a record of zeros, except for these fields."""
        record = cls.array(1)[0]
        for name, value in values.items():
            record[name] = value
        return record  # type: ignore[no-any-return]

    @classmethod
    def array(cls, count: int) -> Any:
        """Returns an array of records of zeros."""
        return np.zeros(count, dtype=cls.layout)

    @classmethod
    def from_rows(cls, numbers: Any) -> Any:
        """Returns an array of records with these numbers, those of all fields for one record after another."""
        return np.array(numbers, dtype=np.int64).reshape(-1, cls.number_count()).view(cls.layout).reshape(-1)

    @classmethod
    def number_count(cls) -> int:
        """The numbers of a record."""
        return cls.layout.itemsize // 8

    @classmethod
    def index_of(cls, name: str) -> int:
        """The index of a field in ``numbers``."""
        return int(cls.layout.fields[name][1]) // 8  # type: ignore[index]
