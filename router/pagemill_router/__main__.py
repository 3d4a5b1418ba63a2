"""`python -m pagemill_router`: one router process."""

from __future__ import annotations

import sys

from pagemill_common import logs
from pagemill_common.grpc.loop import run
from pagemill_common.listen import ListenError
from pagemill_common.status_file import StatusFileError
from pagemill_router.app import serve
from pagemill_router.settings import RouterSettings

_log = logs.get("pagemill.router")


def main(argv: list[str] | None = None) -> int:
    """Runs until drained; the exit status is 0 then, 1 where the address is taken, 2 for a wrong setting."""
    settings = RouterSettings.parse(argv)
    logs.configure(settings.log_format, settings.log_level, service="pagemill-router", instance=settings.name)
    try:
        run(serve(settings))
    except ListenError as failure:
        _log.error("cannot start", error=str(failure))
        return 1
    except StatusFileError as failure:
        _log.error("cannot start", error=str(failure))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
