"""A lock on an open file. The system takes it back when the file is closed or the process ends, however it ends."""

from __future__ import annotations

import errno
import os

FAR = 1 << 40  # a byte that no file of ours has


def lock(descriptor: int) -> bool:
    """Locks the file; False if somebody else has. True, too, on a file system without locks."""
    try:
        import fcntl
    except ImportError:
        return _lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _lock_windows(descriptor: int) -> bool:
    """Windows locks bytes from the file's position on, and nobody may read those: so the byte at FAR is locked."""
    import msvcrt

    os.lseek(descriptor, FAR, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]  # typed on Windows only
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EDEADLK)
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return True
