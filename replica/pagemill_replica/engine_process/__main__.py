"""`python -m pagemill_replica.engine_process`."""

from __future__ import annotations

import sys

from pagemill_replica.engine_process.main import main

sys.exit(main())
