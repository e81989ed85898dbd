"""Numbers of the command line, with nothing heavy: `pgbeat health` reads them, too."""

from math import isnan
from typing import Any

import click


class RealRange(click.FloatRange):
    """A number in a range. NaN, which click finds in each, is none."""

    def convert(self, value: Any, *args: Any) -> float:
        """Reads the number."""
        number: float = super().convert(value, *args)
        if isnan(number):
            self.fail(f"{value!r} is not a number", *args)
        return number
