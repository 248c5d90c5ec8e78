"""Objectives, one per file and found by its name, or `module:Class` for a class elsewhere.

All derive from `Objective`.
"""

from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.base import Metric, Objective
from flaxformer_lite.objectives.row_plans import RowPlan
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables.task import Column, Labelled, Task
from flaxformer_lite.objectives.text.text_objective import TextObjective

__all__ = [
    "AuxiliaryModel",
    "Column",
    "Labelled",
    "LossSums",
    "Metric",
    "Objective",
    "RowPlan",
    "Task",
    "TextObjective",
]
