"""A module that puts an object in its own place."""

import sys


class Replacement:
    @staticmethod
    def function(x):
        return ("replaced", x)


sys.modules[__name__] = Replacement()
