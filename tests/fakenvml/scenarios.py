"""Pretend machines for the pretend NVML library: each function is one, described in a line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

Value = int | str
Pids = Sequence[int]

MIB, GIB = 1 << 20, 1 << 30
# clock event reason bits
IDLE, SW_POWER, HW_SLOWDOWN, SYNC, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 1, 4, 8, 16, 32, 64, 128


class Gpu(dict[str, Value]):
    """One GPU: fields and strings by name, plus processes and free-form lines."""

    def __init__(self, **fields: Value) -> None:
        super().__init__(fields)
        self.procs: list[tuple[str, int, Value, dict[str, Value]]] = []
        self.lines: list[str] = []

    def proc(self, pid: int, mem: Value, /, kind: str = "compute", **util: Value) -> Gpu:
        self.procs.append((kind, pid, mem, util))
        return self

    def text(self, index: int) -> list[str]:
        out = [f"[gpu {index}]"]
        out += [f"{k} {v}" for k, v in self.items()]
        out += self.lines
        for kind, pid, mem, util in self.procs:
            out.append(f"proc {kind} {pid} {mem} " + " ".join(f"{k}={v}" for k, v in util.items()))
        return out


class Box:
    """A pretend machine; write() puts it in a state file."""

    def __init__(self, gpus: list[Gpu], driver: str = "570.133.20", cuda: int = 12080) -> None:
        self.gpus, self.driver, self.cuda = gpus, driver, cuda
        self.lines: list[str] = []
        self.epoch, self.seq = time.time(), 0

    def event(self, gpu: int, kind: str, data: int) -> None:
        self.seq += 1
        self.lines.append(f"event {self.seq} {gpu} {kind} {data}")

    def text(self) -> str:
        out = [
            "fakenvml 1",
            f"driver {self.driver}",
            f"nvml 12.{self.driver}",
            f"cuda {self.cuda}",
            f"epoch {self.epoch:.3f}",
            *self.lines,
        ]
        for i, g in enumerate(self.gpus):
            out += g.text(i)
        return "\n".join(out) + "\n"

    def write(self, path: str) -> None:
        replace(path, self.text())


def replace(path: str, text: str) -> None:
    """Readers never see half of a file."""
    tmp = f"{path}.{os.getpid()}.tmp"
    with open(tmp, "w") as f:
        f.write(text)
    os.rename(tmp, path)


# ------------------------------------------------------------------------------------- machines
def h100(n: int = 8, _pids: Pids = ()) -> Box:
    """8x H100 SXM, 18 NVLinks each to 4 NVSwitches, idle and healthy"""
    buses = ["18", "2A", "3A", "5D", "9A", "AB", "BA", "DB"]
    gpus = []
    for i in range(n):
        g = Gpu(
            name="NVIDIA H100 80GB HBM3",
            uuid=f"GPU-fa4e{i:04x}-0000-4000-8000-{i:012x}",
            pci=f"0000{i // 8:04X}:{buses[i % 8]}:00.0",
            serial=f"165102300{i:04d}",
            vbios="96.00.89.00.01",
            part_number="692-2G520-0200-000",
            inforom="G520.0200.00.05",
            gsp="570.133.20",
            cpus="0-47,96-143" if i % 8 < 4 else "48-95,144-191",
            numa_node=int(i % 8 >= 4),
            minor=i,
            brand=14,
            arch=9,
            cc_major=9,
            cc_minor=0,
            cores=16896,
            bus_width=5120,
            board_id=0x1800 + i,
            module_id=i + 1,
            multi_gpu_board=0,
            virt_mode=0,
            pci_device_id="0x233010de",
            pci_subsystem_id="0x16c110de",
            mem_total=81559 * MIB,
            mem_reserved=551 * MIB,
            mem_used=4 * MIB,
            bar1_total=128 * GIB,
            bar1_used=2 * MIB,
            util_gpu=0,
            util_mem=0,
            util_enc=0,
            util_dec=0,
            util_jpg=0,
            util_ofa=0,
            temp=f"~{30 + i % 4}:{33 + i % 4}:40",
            temp_mem=38,
            temp_shutdown=95,
            temp_slowdown=89,
            temp_mem_max=95,
            temp_gpu_max=88,
            temp_margin=55,
            power=f"?69000:74000:0.5:{i}",
            power_avg=71000,
            power_limit=700000,
            power_enforced=700000,
            power_default=700000,
            power_min=200000,
            power_max=700000,
            energy=f"+{10**9 + i}:71000",
            power_source=0,
            clk_gr=345,
            clk_sm=345,
            clk_mem=2619,
            clk_video=765,
            max_gr=1980,
            max_sm=1980,
            max_mem=2619,
            max_video=1545,
            app_gr=1980,
            app_mem=2619,
            pstate=0,
            throttle=IDLE,
            throttle_supported="0x1ff",
            viol_power=0,
            viol_thermal=0,
            viol_sync=0,
            viol_board=0,
            viol_lowutil=0,
            viol_reliab=0,
            viol_app=0,
            viol_base=0,
            viol_hw_thermal=0,
            viol_power_brake=0,
            ecc_mode=1,
            ecc_pending=1,
            sram_threshold=0,
            remap_corr=0,
            remap_unc=0,
            remap_pending=0,
            remap_failure=0,
            remap_max=2560,
            remap_high=0,
            remap_partial=0,
            remap_low=0,
            remap_none=0,
            fan_count=0,
            pcie_gen=5,
            pcie_width=16,
            pcie_gen_max=5,
            pcie_width_max=16,
            pcie_gen_gpu_max=5,
            pcie_tx=f"?400:900:0.5:{i}",
            pcie_rx=f"?300:600:0.5:{i}",
            pcie_replay=0,
            pcie_corr_errors=0,
            pcie_fatal_errors=0,
            nvlinks=18,
            nvlink_version=4,
            nvlink_speed=26562,
            nvlink_tx=f"+{10**6}:0",
            nvlink_rx=f"+{10**6}:0",
            mig_mode=0,
            mig_pending=0,
            compute_mode=0,
            persistence=1,
            display_mode=0,
            display_active=0,
            recovery_action=0,
            fabric_state=3,
            fabric_status=0,
            fabric_clique=0,
            fabric_health=0,
            gpm_supported=1,
        )
        for kind in ("vol", "agg"):
            for sev in ("corr", "unc"):
                g[f"ecc_{kind}_{sev}_dram"] = g[f"ecc_{kind}_{sev}_sram"] = 0
        switch = [f"00000000:{7 + (link % 4):02X}:00.0" for link in range(18)]
        g.lines = [f"nvlink_state {'1' * 18}"] + [
            f"nvlink_remote {link} switch {s}" for link, s in enumerate(switch)
        ]
        g.lines += [f"gpm {m} 0" for m in (1, 2, 3, 5, 7, 10, 12, 13, 20, 21, 60, 61)]
        gpus.append(g)
    box = Box(gpus)
    for i in range(n):
        levels = ("NODE" if i % 8 // 4 == j % 8 // 4 else "SYS" for j in range(n))
        box.lines.append(_topology(i, levels))
    box.lines.append("p2p * * * OK")
    return box


def consumer(n: int = 4, pids: Pids = ()) -> Box:
    """4x RTX 4090 on PCIe: no NVLink, no ECC, no P2P, fans, a display on GPU 0, one card at x8"""
    gpus = []
    for i in range(n):
        g = Gpu(
            name="NVIDIA GeForce RTX 4090",
            uuid=f"GPU-c04e{i:04x}-0000-4000-8000-{i:012x}",
            pci=f"00000000:{[1, 0x25, 0x41, 0x61][i % 4]:02X}:00.0",
            vbios="95.02.3C.00.A4",
            cpus="0-31",
            numa_node=0,
            minor=i,
            brand=5,
            arch=8,
            cc_major=8,
            cc_minor=9,
            cores=16384,
            bus_width=384,
            board_id=0x100 + i,
            multi_gpu_board=0,
            virt_mode=0,
            pci_device_id="0x268410de",
            pci_subsystem_id="0x889d1043",
            mem_total=24564 * MIB,
            mem_reserved=383 * MIB,
            mem_used=(420 if i == 0 else 12) * MIB,
            bar1_total=32 * GIB,
            bar1_used=3 * MIB,
            util_gpu=0,
            util_mem=0,
            util_enc=0,
            util_dec=0,
            util_jpg=0,
            util_ofa=0,
            temp=38 + i,
            temp_shutdown=100,
            temp_slowdown=95,
            temp_gpu_max=90,
            power=f"?18000:26000:0.5:{i}",
            power_avg=22000,
            power_limit=450000,
            power_enforced=450000,
            power_default=450000,
            power_min=10000,
            power_max=600000,
            energy=f"+{10**8}:22000",
            clk_gr=210,
            clk_sm=210,
            clk_mem=405,
            clk_video=1185,
            max_gr=3120,
            max_sm=3120,
            max_mem=10501,
            max_video=2415,
            fan=30,
            fan_count=2,
            fan_rpm=1100,
            pstate=8,
            throttle=IDLE,
            throttle_supported="0x1ff",
            viol_power=0,
            viol_thermal=0,
            pcie_gen=1,
            pcie_width=8 if i == 3 else 16,
            pcie_gen_max=4,
            pcie_width_max=16,
            pcie_gen_gpu_max=4,
            pcie_tx=0,
            pcie_rx=0,
            pcie_replay=0,
            compute_mode=0,
            persistence=0,
            display_mode=int(i == 0),
            display_active=int(i == 0),
            recovery_action=0,
            gpm_supported=0,
        )
        if i == 0:
            g.proc(pids[0] if pids else 1, 390 * MIB, kind="graphics", sm=0)
        gpus.append(g)
    box = Box(gpus, driver="560.35.03", cuda=12060)
    for i in range(n):
        levels = ("PHB" if i // 2 == j // 2 else "NODE" for j in range(n))
        box.lines.append(_topology(i, levels))
    box.lines += ["p2p * * * CNS", "p2p * * NVLINK NS"]
    return box


def _topology(row: int, levels: Iterable[str]) -> str:
    cells = ("SELF" if row == column else level for column, level in enumerate(levels))
    return f"topo {row} " + " ".join(cells)


def load(
    g: Gpu,
    i: int,
    pids: Pids,
    *,
    mem: int = 60 * GIB,
    low: int = 88,
    high: int = 100,
    power: tuple[int, int] = (560000, 690000),
) -> None:
    """put a training job on GPU g"""
    g.update(
        util_gpu=f"~{low}:{high}:7:{i / 8:.3f}",
        util_mem=f"~35:62:7:{i / 8:.3f}",
        mem_used=mem + 600 * MIB * max(1, len(pids)),
        temp=f"~58:66:60:{i / 8:.3f}",
        temp_mem=74,
        power=f"?{power[0]}:{power[1]}:0.4:{i}",
        power_avg=sum(power) // 2,
        energy=f"+{10**9}:{sum(power) // 2}",
        clk_gr="?1740:1980:0.5",
        clk_sm="?1740:1980:0.5",
        throttle=0,
        pcie_tx=f"?900000:2400000:0.5:{i}",
        pcie_rx=f"?700000:1900000:0.5:{i}",
    )
    if "nvlinks" in g:
        g.update(nvlink_tx=f"+{10**9}:140000000", nvlink_rx=f"+{10**9}:140000000")
        g.lines = [line for line in g.lines if not line.startswith("gpm ")]
        for m, v in (
            (1, "~92:100:7"),
            (2, "~70:88:7"),
            (3, "~30:42:7"),
            (5, "~38:55:7"),
            (7, "~38:55:7"),
            (10, "~35:62:7"),
            (12, 6),
            (13, 3),
            (20, 1800),
            (21, 1500),
            (60, 136000),
            (61, 136000),
        ):
            g.lines.append(f"gpm {m} {v}")
    for pid in pids:
        g.proc(
            pid,
            mem // len(pids) + 600 * MIB,
            sm=f"~{low // max(1, len(pids))}:{high // max(1, len(pids))}:7:{i / 8:.3f}",
            mem="~20:50:7",
        )


def busy(n: int = 8, pids: Pids = ()) -> Box:
    """the H100 box training: every GPU loaded, the given pids dealt out over the GPUs"""
    box = h100(n)
    for i, g in enumerate(box.gpus):
        load(g, i, list(pids)[i::n])
    return box


def throttled(n: int = 8, pids: Pids = ()) -> Box:
    """busy; GPU 2 slowed by heat (HW and SW thermal), GPU 5 by its power cap"""
    box = busy(n, pids)
    box.gpus[2 % n].update(
        temp="~87:90:20",
        clk_gr="?780:960:0.5",
        clk_sm="?780:960:0.5",
        util_gpu=100,
        throttle=HW_SLOWDOWN | HW_THERMAL | SW_THERMAL,
        viol_thermal="+120000000000:900000000",
        viol_hw_thermal="+90000000000:700000000",
        power="?310000:360000:0.4",
    )
    box.gpus[5 % n].update(
        clk_gr="?1320:1450:0.5",
        clk_sm="?1320:1450:0.5",
        throttle=SW_POWER,
        viol_power="+50000000000:950000000",
        power_limit=500000,
        power_enforced=500000,
        power="?495000:505000:0.4",
    )
    return box


def lost(n: int = 8, pids: Pids = (), mode: int = 1) -> Box:
    """busy; GPU 3 fell off the bus: look-ups and calls answer GPU_IS_LOST, with an XID 79 event"""
    box = busy(n, pids)
    box.gpus[3 % n]["lost"] = mode
    box.lines.append("null_segv 1")
    box.event(3 % n, "xid", 79)
    return box


def lost_unknown(n: int = 8, pids: Pids = ()) -> Box:
    """like lost, but the handle look-up answers UNKNOWN"""
    return lost(n, pids, 3)


def lost_late(n: int = 8, pids: Pids = ()) -> Box:
    """like lost, but look-ups and identity still work (a monitor that already holds the handle)"""
    return lost(n, pids, 2)


def ecc(n: int = 8, pids: Pids = ()) -> Box:
    """busy; GPU 1 uncorrectable DRAM errors and a row remap pending; GPU 6 corrected ones"""
    box = busy(n, pids)
    box.gpus[1 % n].update(
        ecc_vol_unc_dram=2,
        ecc_agg_unc_dram=5,
        remap_unc=2,
        remap_pending=1,
        remap_max=2558,
        remap_partial=2,
        recovery_action=1,
    )
    box.gpus[6 % n].update(
        ecc_vol_corr_dram="+37:2", ecc_agg_corr_dram="+4100:2", ecc_vol_corr_sram=3
    )
    box.event(1 % n, "xid", 48)
    box.event(1 % n, "xid", 63)
    return box


def ecc_retired(n: int = 8, pids: Pids = ()) -> Box:
    """pre-Ampere style: retired pages instead of remapped rows on GPU 1"""
    box = busy(n, pids)
    for g in box.gpus:
        for k in [k for k in g if k.startswith("remap_")]:
            del g[k]
        g.update(retired_sbe=0, retired_dbe=0, retired_pending=0)
    box.gpus[1 % n].update(retired_sbe=3, retired_dbe=1, retired_pending=1, ecc_agg_unc_dram=1)
    return box


def nvlink_down(n: int = 8, pids: Pids = ()) -> Box:
    """busy; GPU 4 has lost 6 of 18 links, GPU 0 counts replays and CRC errors on link 7"""
    box = busy(n, pids)
    g = box.gpus[4 % n]
    g.lines = [line for line in g.lines if not line.startswith("nvlink_state")] + [
        "nvlink_state 111111111111000000"
    ]
    g.update(nvlink_tx=f"+{10**9}:60000000", nvlink_rx=f"+{10**9}:60000000")
    box.gpus[0].lines += [
        "nvlink_err 7 replay +12:3",
        "nvlink_err 7 crc_flit +900:41",
        "nvlink_err 7 recovery 2",
    ]
    return box


def pcie_degraded(n: int = 8, pids: Pids = ()) -> Box:
    """busy; GPU 7 trained its PCIe link at gen 1 x4 and counts replays"""
    box = busy(n, pids)
    box.gpus[7 % n].update(
        pcie_gen=1,
        pcie_width=4,
        pcie_replay="+200:5",
        pcie_corr_errors="+900:5",
        pcie_tx=780000,
        pcie_rx=640000,
    )
    return box


def straggler(n: int = 8, pids: Pids = ()) -> Box:
    """busy; GPU 6 stalls half of each 4 s step, the others wait for it at 100 %"""
    box = busy(n, pids)
    for g in box.gpus:
        g.update(util_gpu=100, power="^280000:650000:4:0.5")
    box.gpus[6 % n].update(util_gpu="^4:97:4:0.5", power="^120000:650000:4:0.5")
    return box


def hung(n: int = 8, pids: Pids = ()) -> Box:
    """a collective hangs: 100 % utilization, almost no power, no NVLink or PCIe traffic"""
    box = busy(n, pids)
    for i, g in enumerate(box.gpus):
        g.update(
            util_gpu=100,
            util_mem=0,
            power=f"?118000:124000:0.5:{i}",
            temp=41,
            nvlink_tx=10**12,
            nvlink_rx=10**12,
            pcie_tx=0,
            pcie_rx=0,
            energy=f"+{10**9}:121000",
        )
    return box


def orphan(n: int = 8, _pids: Pids = ()) -> Box:
    """GPU 2 holds 41 GiB that no listed process owns; the rest idle"""
    box = h100(n)
    box.gpus[2 % n]["mem_used"] = 41 * GIB
    return box


def container(n: int = 8, _pids: Pids = ()) -> Box:
    """busy as seen in a container: pids that do not exist here, memory per process N/A"""
    box = h100(n)
    for i, g in enumerate(box.gpus):
        load(g, i, [])
        g["mem_used"] = 60 * GIB
        g.proc(4000000 + i, "N/A", sm="N/A")
    return box


def mig(n: int = 8, pids: Pids = ()) -> Box:
    """GPU 0 in MIG mode: no utilization, two parts, the second with a process of its own"""
    box = busy(n, pids)
    box.gpus[0].update(mig_mode=1, mig_pending=1, util_gpu="N/A", util_mem="N/A")
    box.gpus[0].lines += [
        f"part 1 0 MIG-00000000-0000-4000-8000-000000000001 {1 * GIB} {40 * GIB}",
        f"part 2 0 MIG-00000000-0000-4000-8000-000000000002 {30 * GIB} {40 * GIB}",
    ]
    box.gpus[0].proc(3001, 29 * GIB, gi=2, ci=0)
    return box


def no_driver(n: int = 8, _pids: Pids = ()) -> Box:
    """the library is there, the kernel driver is not"""
    box = h100(n)
    box.lines.append("init_error DRIVER_NOT_LOADED")
    return box


def mismatch(n: int = 8, _pids: Pids = ()) -> Box:
    """driver and library versions differ (after an upgrade without a reboot)"""
    box = h100(n)
    box.lines.append("init_error LIB_RM_VERSION_MISMATCH")
    return box


def no_permission(n: int = 8, pids: Pids = ()) -> Box:
    """an ordinary user on a locked-down host: processes, accounting, events and counters denied"""
    box = busy(n, pids)
    for f in (
        "nvmlDeviceGet*RunningProcesses*",
        "nvmlDeviceGetProcess*",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetNvLinkErrorCounter",
    ):
        box.lines.append(f"fault {f} NO_PERMISSION")
    return box


def slow(n: int = 8, pids: Pids = ()) -> Box:
    """busy on a slow driver: 2 ms a call, 20 ms for PCIe throughput, one call at a time"""
    box = busy(n, pids)
    box.lines += ["latency * 2000", "latency nvmlDeviceGetPcieThroughput 20000", "serialize 1"]
    return box


def flaky(n: int = 8, pids: Pids = ()) -> Box:
    """busy; one call in fifty answers UNKNOWN"""
    box = busy(n, pids)
    box.lines.append("fault nvmlDeviceGet[!HC]* UNKNOWN 0.02")
    return box


def unified(n: int = 1, pids: Pids = ()) -> Box:
    """GB10-like: memory is the host's (the memory calls answer NOT_SUPPORTED), no power limit"""
    box = busy(n, pids)
    for g in box.gpus:
        for field in ("mem_total", "mem_used", "mem_reserved", "power_limit", "power_enforced"):
            g.pop(field)
        g["name"] = "NVIDIA GB10"
    return box


def mute(n: int = 8, _pids: Pids = ()) -> Box:
    """every field of every GPU answers NOT_SUPPORTED"""
    gpus = [Gpu(name="NVIDIA Graphics Device", uuid=f"GPU-{i:08x}") for i in range(n)]
    return Box(gpus)


def hot(n: int = 8, pids: Pids = ()) -> Box:
    """B200-like: 1000 W and more on each GPU"""
    box = busy(n, pids)
    for g in box.gpus:
        g.update(name="NVIDIA B200", power=1000000, power_limit=1200000, power_enforced=1200000)
        g.update(mem_total=183359 * MIB, mem_used=170000 * MIB)
    return box


def garbage(n: int = 8, pids: Pids = ()) -> Box:
    """GPU 2 reports a utilization of 37100 %"""
    box = busy(n, pids)
    box.gpus[2 % n]["util_gpu"] = 37100
    return box


SCENARIOS: dict[str, Callable[..., Box]] = {
    f.__name__: f
    for f in (
        h100,
        consumer,
        busy,
        throttled,
        lost,
        lost_unknown,
        lost_late,
        ecc,
        ecc_retired,
        nvlink_down,
        pcie_degraded,
        straggler,
        hung,
        orphan,
        container,
        mig,
        no_driver,
        mismatch,
        no_permission,
        slow,
        flaky,
        unified,
        mute,
        hot,
        garbage,
    )
}
