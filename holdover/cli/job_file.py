"""The user's Python file that defines a job.

The file defines a function `build(args: list[str])` that returns a `holdover.Job`, or else a job
named `job`. It runs in the command's process, under a module name of its own, so that a part that
begins with `if __name__ == "__main__":` does not run. Its functions travel with the job; files
that they import only when they run are attached to the job by the user (`job.attach`).
"""

from __future__ import annotations

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from holdover.api.job import Job
from holdover.errors import InvalidJob

_MODULE_NAME = "holdover_job_file"


def load_job(path: Path, arguments: list[str]) -> Job:
    """The job that the file defines. Raises InvalidJob, also for whatever the file raises."""
    if not path.is_file():
        raise InvalidJob(f"{path}: there is no such file; give the Python file of the job")
    specification = spec_from_file_location(_MODULE_NAME, path)
    if specification is None or specification.loader is None:
        raise InvalidJob(f"{path}: not a Python file (*.py)")
    module = module_from_spec(specification)
    sys.modules[_MODULE_NAME] = module
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        specification.loader.exec_module(module)
        job = _job_of(module, path, arguments)
    except InvalidJob:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidJob(f"{path}{_line_in(path, error)}: {_sentence(error)}") from error
    if not isinstance(job, Job):
        raise InvalidJob(
            f"{path}: the job is a {type(job).__name__}, not a holdover.Job:"
            " return the Job that the operators were called on"
        )
    return job


def _job_of(module: ModuleType, path: Path, arguments: list[str]) -> object:
    build = getattr(module, "build", None)
    if callable(build):
        job: object = build(arguments)
        return job
    if not hasattr(module, "job"):
        raise InvalidJob(
            f"{path}: defines neither build(args) nor job: define build(args: list[str]) that"
            " returns a holdover.Job"
        )
    if arguments:
        raise InvalidJob(f"{path}: takes no arguments, since it defines no build(args)")
    return module.job


def _line_in(path: Path, error: BaseException) -> str:
    """` line 12`, of the innermost frame that is in the file itself."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f" line {lines[-1]}" if lines else ""


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it exits ({error.code}) instead of defining a job"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
