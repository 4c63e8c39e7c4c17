"""A target with one attribute of each kind that a patch may replace."""

import sys

body = getattr(sys, "fake_megatron_bodies", 0) + 1
sys.fake_megatron_bodies = body


def function(x, *, y=1):
    """Say what it got."""
    return ("function", x, y)


class Model:
    def method(self, x):
        return ("method", x)

    @staticmethod
    def static(x):
        return ("static", x)

    @classmethod
    def of_class(cls, x):
        return (cls.__name__, x)
