"""`python -m pagemill_replica`: one replica process."""

from __future__ import annotations

import os
import sys

# The engine is started by fork and exec, which needs none of gRPC's fork handlers; they would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from pagemill_common import logs
from pagemill_common.grpc.loop import run
from pagemill_common.status_file import StatusFileError
from pagemill_replica.front.app import EXIT_WRONG_SETTING, ReplicaApp
from pagemill_replica.settings import ReplicaSettings

_log = logs.get("pagemill.replica")


def main() -> int:
    """Reads the settings and runs until drained; returns the exit status."""
    settings = ReplicaSettings.parse()
    logs.configure(settings.log_format, settings.log_level, service="pagemill-replica", instance=settings.name)
    try:
        return run(_serve(settings))
    except StatusFileError as failure:
        _log.error("cannot start", error=str(failure))
        return EXIT_WRONG_SETTING


async def _serve(settings: ReplicaSettings) -> int:
    return await ReplicaApp(settings).run()


if __name__ == "__main__":
    sys.exit(main())
