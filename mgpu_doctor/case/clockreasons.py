"""What slows a GPU's clock down, in words."""

from __future__ import annotations

WORDS = {
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_power_brake": "the power supply's brake",
    "hw_slowdown": "hardware slowdown",
    "power_cap": "power cap",
    "clocks_setting": "a clock that somebody has set",
    "sync_boost": "another GPU of its sync boost group",
}
"""NVML's clock event reasons that slow a device down, the most telling first."""
HARD = ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown")
"""Those that a healthy device under load does not give; a power cap is usual under full load."""
