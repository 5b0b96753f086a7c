"""The trial of conditional puts, against moto."""

from __future__ import annotations

import pytest

from cdc.disk import object_stores
from tests.support.s3 import KEY, SECRET, serve


@pytest.mark.parametrize("ignores", [False, True], ids=["refuses", "replaces"])
@pytest.mark.parametrize("lost", [None, 0, 1], ids=["all-answers", "first-answer-lost", "second-answer-lost"])
def test_the_trial_tells_what_the_store_does_and_leaves_nothing(lost: int | None, ignores: bool) -> None:
    uri = "s3://trials/archive"
    with serve("trials", kind="moto") as server:
        access = {"key": KEY, "secret": SECRET, "skip_instance_cache": True}
        object_stores.register(uri, lambda: access | {"client_kwargs": {"endpoint_url": server.endpoint}})
        puts: list[str] = []

        def lose(request: str) -> int | None:
            if not request.startswith("PUT "):
                return None
            puts.append(request)
            return -500 if len(puts) - 1 == lost else None

        server.ignores_conditions, server.faults = ignores, lose
        assert object_stores.can_put_if_absent(uri) is not ignores
        assert len(puts) == (2 if lost is None else 3), "a put whose answer was lost is repeated"
        assert server.filesystem().find("trials") == []
