"""Compares the affected rows of a patch with the releases and the device at hand."""

from collections.abc import Iterable

from packaging.version import Version

from mcore_autopatch import installed
from mcore_autopatch.declaration import Affected, Device, Patch
from mcore_autopatch.outcome import SkipReason
from mcore_autopatch.record import Record


class Combination(Record):
    """What a patch may meet: two releases, as they state themselves, and a device."""

    megatron_core: str | None
    torch: str | None
    #: None where nobody knows, as before torch is loaded.
    device: Device | None

    @classmethod
    def loaded(cls) -> "Combination":
        """Return what is loaded in this process."""
        return cls(megatron_core=installed.megatron_core(), torch=installed.torch(), device=installed.device())

    def __str__(self) -> str:
        return (
            f"megatron-core {self.megatron_core}, torch {self.torch}{f', {self.device.value}' if self.device else ''}"
        )


def match(patch: Patch, here: Combination) -> tuple[Affected | None, SkipReason | None, str]:
    """Return the first row that matches, or the reason why none does, and a detail in words."""
    core, torch = installed.parsed(here.megatron_core), installed.parsed(here.torch)
    if core is None:
        return None, SkipReason.VERSION_UNREADABLE, f"megatron-core states its version as {here.megatron_core!a}"
    rows = [row for row in patch.affected if Affected.contains(row.megatron_core, core)]
    if not rows:
        wanted = _listed(row.megatron_core for row in patch.affected)
        detail = f"megatron-core {here.megatron_core} is not affected (affected: {wanted})"
        return None, SkipReason.MEGATRON_VERSION, detail
    if torch is None and all(row.torch for row in rows):
        return None, SkipReason.VERSION_UNREADABLE, f"torch states its version as {here.torch!a}"
    wanted = _listed(row.torch for row in rows)
    rows = [row for row in rows if not row.torch or _has(row.torch, torch)]
    if not rows:
        detail = f"megatron-core {here.megatron_core} is affected with torch {wanted} only; this is torch {here.torch}"
        return None, SkipReason.TORCH_VERSION, detail
    if here.device is None:  # a row for any device is sure to hold, one for a certain device may
        rows.sort(key=lambda row: row.device is not None)
    for row in rows:
        if row.device is None or here.device in (None, row.device):
            return row, None, f"{here} is in range"
    wanted = _listed(row.device.value for row in rows if row.device)
    return (
        None,
        SkipReason.DEVICE,
        f"only {wanted} is affected; this is {here.device.value if here.device else 'unknown'}",
    )


def _has(specifier: str, version: Version | None) -> bool:
    return version is not None and Affected.contains(specifier, version)


def _listed(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))
