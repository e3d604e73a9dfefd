"""A command with plain options: one line on standard error and exit code 2 for what cannot work."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.cli.call import errors
from experiments.cli.errors import ConfigFault, one_line
from experiments.cli.logs import quiet_libraries
from experiments.studies.harness.study import check
from fedsim.errors import RunError
from fedsim.settings.places import write_refused
from fedsim.simulation.ray_cluster import quiet_environment


def call(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Run it with the options; what it had finished when it was stopped is on disk."""
    quiet_environment()
    quiet_libraries()
    with faults_in_one_line(lambda: "interrupted: the same command goes on from here"):
        check(options)
        run(options)


@contextmanager
def faults_in_one_line(interrupted: Callable[[], str]) -> Iterator[None]:
    """Exit with one line where the block cannot do its work; `interrupted` says how to go on where it was stopped."""
    try:
        yield
    except RunError as error:
        errors.print(f"error: {error}", markup=False)
        sys.exit(2)
    except ConfigFault as error:
        errors.print(f"error: {one_line(error, 'audit', [])}", markup=False)
        sys.exit(2)
    except OSError as error:
        fault = write_refused(error, Path())
        if not fault:
            raise
        errors.print(f"error: {fault}; what had finished is kept", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print(interrupted(), markup=False)
        sys.exit(130)
