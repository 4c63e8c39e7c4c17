"""An example: a size of zero is named in the error instead of ending in an integer modulo."""

import inspect

from mcore_autopatch import Affected, Patch


def probe(module):
    """Tell whether divide() lets the interpreter complain about the zero."""
    return "denominator == 0" not in inspect.getsource(module.divide)


def naming_the_zero(original):
    """Raise a ValueError that names both numbers; any other call goes to the original."""

    def divide(numerator, denominator):
        if denominator == 0:
            raise ValueError(f"cannot divide {numerator} by a parallel size of 0")
        return original(numerator, denominator)

    return divide


patch = Patch(
    title="a parallel size of zero is a riddle",
    symptom="An error without a word about which size was zero.",
    errors=("ZeroDivisionError: integer modulo by zero",),
    cause="megatron.core.utils.divide computes numerator % denominator first.",
    effect="ValueError with both numbers. Every other call is passed on untouched.",
    upstream="https://example.com/issues/1",
    target="megatron.core.utils",
    affected=(Affected(megatron_core=">=0.10", source="example.com#1"),),
    probe=probe,
    replacements={"divide": naming_the_zero},
)
