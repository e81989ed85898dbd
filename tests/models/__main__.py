"""Checks all models and their variants, and prints a table: `python -m tests.models [--trace]`."""

import argparse
import time

from tests.models import MODELS
from tests.models.checker import check


def main() -> None:
    """Prints a line for each model, and with `--trace` how each variant breaks its invariant."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", help="models; all, if none is given")
    arguments.add_argument("--trace", action="store_true", help="print what breaks each variant")
    given = arguments.parse_args()
    print(f"{'model':12} {'states':>8} {'transitions':>12} {'seconds':>8}  verdict")
    for name in given.names or MODELS:
        module, began = MODELS[name], time.monotonic()
        verdict = check(module.model())
        seconds = time.monotonic() - began
        result = "holds" if verdict.broken is None else f"BROKEN: {verdict.broken}"
        print(f"{name:12} {verdict.states:8} {verdict.transitions:12} {seconds:8.1f}  {result}")
        if given.trace or verdict.broken:
            print(*(f"        {step}" for step in verdict.trace), sep="\n")
        for variant, invariant in module.VARIANTS.items():
            found = check(module.model(variant), invariant)
            result = "caught" if found.broken == invariant else f"NOT CAUGHT ({found.broken})"
            print(f"  {variant}: {result}: {invariant} ({found.states} states)")
            if given.trace:
                print(*(f"        {step}" for step in found.trace), sep="\n")


main()
