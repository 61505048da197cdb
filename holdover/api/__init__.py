"""What users write: a `Job` of data sets and operators, which becomes a JobGraph."""

from holdover.api.dataset import DataSet, Exchange, Rows
from holdover.api.job import Job

__all__ = ["DataSet", "Exchange", "Job", "Rows"]
