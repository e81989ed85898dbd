"""Runs the harness with pgbeat among its systems: `python run.py --help`."""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADAPTER = HERE / "pgbeat-bench"


def register(adapters: object) -> None:
    """Adds pgbeat to the harness's systems, in a container like the others."""
    image = "pgbeat-bench"
    adapters.ADAPTERS["pgbeat"] = adapters.AdapterEntry(
        bench_dir=ADAPTER,
        builder=lambda skip: adapters._docker_build(
            image, ADAPTER / "Dockerfile", HERE.parents[1], skip
        ),
        launcher=lambda manifest, overrides: adapters._docker_launch(image, manifest, overrides),
    )


def main() -> int:
    """Reads what is ours of the command line; the harness reads the rest."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--harness", type=Path, required=True, help="the clone of the harness")
    parser.add_argument(
        "--native", type=Path, metavar="FOLDER", help="no Docker: Postgres runs in FOLDER"
    )
    parser.add_argument(
        "--postgres", type=Path, metavar="BIN", help="its programs; those of the extra 'embedded'"
    )
    options, rest = parser.parse_known_args()
    sys.path.insert(0, str(options.harness.resolve()))
    from bench_harness import adapters, orchestrator

    register(adapters)
    if options.native:
        import native

        native.install(adapters, orchestrator, options.native.absolute(), options.postgres)
    return int(orchestrator.main(rest))


if __name__ == "__main__":
    sys.exit(main())
