"""What became of a patch in this process."""

import enum

from mcore_autopatch.declaration import Affected
from mcore_autopatch.foreign import printable
from mcore_autopatch.record import Record


class Status(str, enum.Enum):
    """Where a patch stands."""

    #: Its target module has not been imported yet.
    WAITING = "waiting"
    #: The fix is in place.
    APPLIED = "applied"
    #: There was a reason not to apply it; see SkipReason.
    SKIPPED = "skipped"
    #: Something broke while deciding or applying. The target module is as it would be without this package.
    FAILED = "failed"


class SkipReason(str, enum.Enum):
    """Why a patch was not applied."""

    #: An environment variable leaves it out.
    SWITCHED_OFF = "switched off"
    #: This megatron-core release is not affected.
    MEGATRON_VERSION = "megatron-core version"
    #: This torch release is not affected.
    TORCH_VERSION = "torch version"
    #: This device is not affected.
    DEVICE = "device"
    #: A version could not be read, so nobody can say whether it is affected.
    VERSION_UNREADABLE = "version unreadable"
    #: The release is in range, but the probe did not find the bug in the loaded code.
    BUG_ABSENT = "bug absent"
    #: Somebody has fixed it already.
    ALREADY_PATCHED = "already patched"
    #: The target in sys.modules is a stand-in that was not loaded from a file.
    STAND_IN = "stand-in module"


class Outcome(Record):
    """The decision about one patch in this process."""

    #: Id of the patch.
    patch: str
    #: Where it stands.
    status: Status
    #: Why it was skipped; None unless the status is SKIPPED.
    reason: SkipReason | None = None
    #: The same in words, for people.
    detail: str = ""
    #: The affected row that matched, if one did.
    affected: Affected | None = None
    #: Full text of the exception; empty unless the status is FAILED.
    traceback: str = ""
    #: Where the patch comes from: this package, another distribution or a file.
    origin: str = "mcore-autopatch"

    def __post_init__(self) -> None:
        """Let nothing that others have written reach a terminal or a log as it is."""
        vars(self)["detail"] = printable(self.detail)
        vars(self)["traceback"] = "\n".join(map(printable, self.traceback.split("\n")))
