"""A process of a cluster that does what is said of it, as in `worker-1=ends:3`.

ends:CODE, when its input ends; waits: for a signal; deaf: also to SIGTERM.
"""

import json
import os
import signal
import sys

task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task['type']}-{task['index']}"
todo = dict(each.split("=") for each in sys.argv[1:])
what, _, code = todo[me].partition(":")
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"{me} {os.getpid()}\n".encode())
if what == "ends":
    sys.stdin.read()
    sys.exit(int(code))
while True:
    signal.pause()
