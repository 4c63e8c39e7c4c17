"""What comes from others: their texts made harmless to show, and their exceptions told from ours."""

import inspect
import itertools
import traceback

#: Characters of a text that are shown. No path is longer.
LIMIT = 4096


def printable(text: str) -> str:
    """Escape what a terminal would obey or a log would take for a new line, such as ESC and newline."""
    shown = text if len(text) <= LIMIT else f"{text[:LIMIT]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


def described(error: BaseException) -> str:
    """Return type and text of an exception in one line, also where its ``__str__`` raises."""
    try:
        text = " ".join(str(error).split())
    except Exception as another:
        text = f"its text raises {type(another).__name__}"
    return printable(f"{type(error).__name__}: {text}".removesuffix(": "))


def interrupts(error: BaseException) -> bool:
    """Tell whether an exception comes from the user or from a signal handler, and so has to pass through us.

    Python calls a handler with the number of the signal and the frame that it interrupts, which is then the caller.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names, variable, _, values = inspect.getargvalues(frame)
        arguments = [*map(values.get, names), *(values.get(variable) or () if variable else ())]
        for number, interrupted in itertools.pairwise(arguments):
            if isinstance(number, int) and interrupted is not None and interrupted is frame.f_back:
                return True
    return False
