"""Build the pretend NVML library and write the state files that it reads.

    python -m tests.fakenvml.fakenvml build --out DIR [--hide NAME ...]   compile libnvidia-ml.so.1
    ... list                                   the scenarios, one line each
    ... write SCENARIO --out FILE [options]    write one state file
    ... play SCENARIO --out FILE --hz 2 --seconds 60 [--then 20:lost ...]
    ... serve SCENARIO --out FILE --spawn 16   start 16 stand-in training processes, write the file
                                               with their pids, wait for a signal
    ... event FILE GPU TYPE DATA               append an event, e.g. `event s.txt 3 xid 79`
    ... counts FILE                            print FAKENVML_COUNTS counters as JSON
    ... abi DIR                                struct layouts of DIR's library against nvidia-ml-py

Options of write, play and serve: --gpus N, --pids 1,2,3, --latency PATTERN=USEC (repeatable),
--fault [GPU:]PATTERN=ERR (repeatable), --set GPU:FIELD=VALUE (repeatable; GPU a number or *).
Files are replaced by rename, so a reader never sees half of one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fakenvml.scenarios import GIB, IDLE, MIB, SCENARIOS, Box, Pids, replace

SOURCE = Path(__file__).with_name("fakenvml.c")
LIBRARY = "libnvidia-ml.so.1"
_DEFAULT_GPUS = {"consumer": 4, "unified": 1}


def build(
    out: Path, hide: Sequence[str] = (), defines: Sequence[str] = (), optimise: int = 1
) -> Path:
    """Compile the library into `out`. `hide` leaves out entry points, as an older driver does."""
    out.mkdir(parents=True, exist_ok=True)
    command = [
        os.environ.get("CC", "cc"),
        f"-O{optimise}",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    command += ["-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}"]
    command += [f"-D{define}" for define in defines]
    if hide:
        script = out / "hide.map"
        script.write_text("{ local: " + " ".join(f"{name};" for name in hide) + " };\n")
        command.append(f"-Wl,--version-script={script}")
    command += ["-o", str(out / LIBRARY), str(SOURCE), "-lm", "-lpthread"]
    subprocess.run(command, check=True)
    return out / LIBRARY


def machine(
    name: str,
    *,
    gpus: int | None = None,
    pids: Pids = (),
    latency: Sequence[str] = (),
    fault: Sequence[str] = (),
    values: Sequence[str] = (),
) -> Box:
    """The machine of a scenario, changed as the options in this module's docstring say."""
    scenario = SCENARIOS[name]
    box = scenario(gpus or _DEFAULT_GPUS.get(name, 8), pids)
    box.lines += ["latency " + one.replace("=", " ", 1) for one in latency]
    for one in fault:
        gpu, colon, rest = one.partition(":")
        if colon and gpu.isdigit():
            box.gpus[int(gpu)].lines.append("fault " + rest.replace("=", " ", 1))
        else:
            box.lines.append("fault " + one.replace("=", " ", 1))
    for one in values:
        gpu, _, rest = one.partition(":")
        field, _, value = rest.partition("=")
        for index, device in enumerate(box.gpus):
            if gpu in ("*", str(index)):
                device[field] = value
    return box


def _machine(name: str, args: argparse.Namespace, pids: Pids) -> Box:
    return machine(
        name,
        gpus=args.gpus,
        pids=pids,
        latency=args.latency,
        fault=args.fault,
        values=args.set,
    )


def play(args: argparse.Namespace, pids: Pids) -> None:
    """Rewrite the file at --hz: a training job starts, steps, checkpoints every 20 s."""
    then = sorted((float(at), name) for at, _, name in (one.partition(":") for one in args.then))
    box, name = _machine(args.scenario, args, pids), args.scenario
    start, turn = time.time(), 0
    temperatures = [32.0] * len(box.gpus)
    while (elapsed := time.time() - start) < args.seconds:
        while then and elapsed >= then[0][0]:
            name = then.pop(0)[1]
            box = _succeed(box, _machine(name, args, pids))
        if name in ("h100", "busy"):  # the scenarios whose numbers this moves itself
            _train(box, elapsed, temperatures, args.hz)
        box.write(args.out)
        turn += 1
        time.sleep(max(0, start + turn / args.hz - time.time()))


def _succeed(old: Box, new: Box) -> Box:
    """Clocks and event numbers go on where the old scenario stood."""
    new.epoch = old.epoch
    for place, line in enumerate(new.lines):
        if line.startswith("event "):
            _, number, rest = line.split(" ", 2)
            new.lines[place] = f"event {int(number) + old.seq} {rest}"
    new.seq += old.seq
    return new


def _train(box: Box, elapsed: float, temperatures: list[float], hz: float) -> None:
    ramp, saving = min(1.0, elapsed / 10), elapsed % 20 > 18
    for index, gpu in enumerate(box.gpus):
        step = 0.5 + 0.5 * math.sin(2 * math.pi * (elapsed / 1.7 + index / 40))
        busy = 0 if saving else ramp * (86 + 14 * step)
        watts = 90 + (60 if saving else ramp * (480 + 120 * step))
        temperatures[index] += (30 + watts / 18 - temperatures[index]) * min(1, 0.3 / hz)
        clock = 1980 if busy else 345
        gpu.update(
            util_gpu=round(busy),
            util_mem=round(busy * 0.55),
            power=round(watts * 1000),
            temp=round(temperatures[index]),
            mem_used=round(4 * MIB + ramp * 66 * GIB),
            clk_sm=clock,
            clk_gr=clock,
            throttle=0 if busy else IDLE,
        )


def serve(args: argparse.Namespace) -> None:
    """Stand-in training processes, listed in the state file until a signal comes."""
    quiet = "import ctypes, time\nctypes.CDLL(None).prctl(1, 15)\ntime.sleep(10**8)\n"
    children = [
        subprocess.Popen([sys.executable, "-c", quiet, f"--local-rank={index}"])
        for index in range(args.spawn)
    ]
    try:
        _machine(args.scenario, args, [child.pid for child in children]).write(args.out)
        print(" ".join(str(child.pid) for child in children), flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        for child in children:
            child.terminate()


def event(path: str, gpu: int, kind: str, data: int) -> None:
    """Add an event to a state file, with the next number."""
    lines = Path(path).read_text().splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("event ")]
    lines.insert(5, f"event {1 + max(numbers, default=0)} {gpu} {kind} {data}")
    replace(path, "\n".join(lines) + "\n")


def counts(path: str) -> dict[str, int]:
    """How often each function was called."""
    data = Path(path).read_bytes()
    rows = (struct.unpack_from("56sQ", data, offset) for offset in range(0, len(data), 64))
    return {name.split(b"\0")[0].decode(): count for name, count in rows if name[0]}


def abi(library: Path) -> list[str]:
    """Sizes and offsets that differ between the pretend library and nvidia-ml-py."""
    import pynvml

    lib = ctypes.CDLL(str(library))
    lib.fakenvml_abi.restype = ctypes.c_char_p
    odd = {
        "nvmlPciInfo_t": "nvmlPciInfo_t",
        "nvmlPciInfo_v2_t": "nvmlPciInfo_v2_t",
        "nvmlPciInfoExt_v1_t": "nvmlPciInfoExt_v1_t",
        "nvmlRowRemapperHistogramValues_t": "c_nvmlRowRemapperHistogramValues",
        "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    }
    differing = []
    for line in lib.fakenvml_abi().decode().splitlines():
        name, value = line.split()
        struct_name, _, member = name.partition(".")
        known = getattr(pynvml, odd.get(struct_name, "c_" + struct_name), None)
        if known is None:
            continue  # an older nvidia-ml-py does not have it
        want = getattr(known, member).offset if member else ctypes.sizeof(known)
        if want != int(value):
            differing.append(f"{name}: library {value}, nvidia-ml-py {want}")
    return differing


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build")
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--hide", nargs="*", default=[])
    verbs.add_parser("list")
    for name in ("write", "play", "serve"):
        verb = verbs.add_parser(name)
        verb.add_argument("scenario", choices=SCENARIOS)
        verb.add_argument("--out", required=True)
        verb.add_argument("--gpus", type=int)
        verb.add_argument("--pids", default="")
        for option in ("--latency", "--fault", "--set"):
            verb.add_argument(option, action="append", default=[])
        if name == "play":
            verb.add_argument("--hz", type=float, default=2)
            verb.add_argument("--seconds", type=float, default=60)
            verb.add_argument("--then", action="append", default=[])
        if name == "serve":
            verb.add_argument("--spawn", type=int, default=16)
    verb = verbs.add_parser("event")
    verb.add_argument("file")
    verb.add_argument("gpu", type=int)
    verb.add_argument("kind")
    verb.add_argument("data", type=int)
    verbs.add_parser("counts").add_argument("file")
    verbs.add_parser("abi").add_argument("dir", type=Path)
    return parser


def main() -> int:
    args = _arguments().parse_args()
    if args.verb == "build":
        print(build(args.out, args.hide))
    elif args.verb == "list":
        for name, scenario in SCENARIOS.items():
            print(f"{name:14} {scenario.__doc__}")
    elif args.verb in ("write", "play"):
        pids = [int(pid) for pid in args.pids.split(",") if pid]
        if args.verb == "write":
            _machine(args.scenario, args, pids).write(args.out)
        else:
            play(args, pids)
    elif args.verb == "serve":
        serve(args)
    elif args.verb == "event":
        event(args.file, args.gpu, args.kind, args.data)
    elif args.verb == "counts":
        print(json.dumps(counts(args.file), indent=1))
    else:
        differing = abi(args.dir / LIBRARY)
        print("\n".join(differing) or "no difference")
        return bool(differing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
