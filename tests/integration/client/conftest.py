"""The service that callers meet in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fake_service import FakeServer, start_server


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    fake = FakeServer()
    server = start_server(fake)
    yield fake
    server.stop(grace=None).wait()
