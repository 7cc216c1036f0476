"""Runs a program and prints {"peak_bytes", "wall_s", "status", "stdout", "stderr"} as JSON.

Usage: peak.py PROGRAM ARGUMENT...

peak_bytes is the largest resident set of the program itself, from wait4; pages of a mapped file count when they are resident.
"""

import json
import os
import sys
import tempfile
import time


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: peak.py PROGRAM ARGUMENT...")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)]
        begin = time.perf_counter()
        try:
            pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
        except OSError as error:
            sys.exit(f"cannot start {sys.argv[1]}: {error}")
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - begin
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    report = {
        # Linux counts in KiB.
        "peak_bytes": usage.ru_maxrss * 1024,
        "wall_s": wall_s,
        "status": os.waitstatus_to_exitcode(status),
        "stdout": texts[0],
        "stderr": texts[1],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
