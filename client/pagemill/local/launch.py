"""Becomes another program that ends when whoever started this one ends.

Run as a file, `python launch.py PARENT_PID COMMAND...`: it imports nothing of the package, so it costs milliseconds.
The kernel's parent-death signal survives the exec and also fires where the parent is killed with SIGKILL.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arms the signal, then replaces this process."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent died before the signal was armed.
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
