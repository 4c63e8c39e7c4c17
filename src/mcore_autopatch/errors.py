"""Exceptions that users can meet."""


class AutopatchError(Exception):
    """Base class of every exception that this package raises on purpose."""


class PatchDefinitionError(AutopatchError):
    """A patch file is wrong: a field is missing or unreadable, or an id is taken twice.

    Attributes:
        patch: id or file of the culprit.

    """

    def __init__(self, patch: str, problem: str) -> None:
        super().__init__(f"{patch}: {problem}")
        self.patch = patch


class UnknownPatchError(AutopatchError):
    """There is no patch of that id.

    Attributes:
        patch: the id that was given.

    """

    def __init__(self, patch: str, nearest: str, known: list[str]) -> None:
        hint = f"did you mean {nearest}?" if nearest else f"known: {', '.join(known)}"
        super().__init__(f"there is no patch {patch[:80]!a}; {hint}")
        self.patch = patch


class PatchFailedError(AutopatchError):
    """A patch could not be applied, and MCORE_AUTOPATCH_STRICT asks for an error in that case.

    Attributes:
        patch: id of the patch.

    """

    def __init__(self, patch: str, problem: str) -> None:
        super().__init__(
            f"patch {patch} failed: {problem}. It is an error because MCORE_AUTOPATCH_STRICT is set; "
            f"MCORE_AUTOPATCH_DISABLE={patch} leaves this patch out"
        )
        self.patch = patch
