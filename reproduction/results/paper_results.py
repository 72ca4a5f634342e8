"""PaperResults: the results of all trainings that the report is made of."""

from dataclasses import dataclass
from pathlib import Path

from reproduction.results.comparability import (
    check_equal_conditions,
    check_equal_convergence,
    check_equal_tests,
    check_one_sweep,
    check_one_text,
    check_shared_epochs,
)
from reproduction.results.files import read_results
from reproduction.results.schema import LargeTextResult, SweepPoint, TrainingCurve, TunedResult


@dataclass(frozen=True, kw_only=True)
class PaperResults:
    """The results of every figure and table; those without a file are empty.

    `ValueError` where results cannot be compared.
    """

    figure2: tuple[TunedResult, ...] = ()
    figure3: tuple[SweepPoint, ...] = ()
    figure4: tuple[TrainingCurve, ...] = ()
    figure5: tuple[TunedResult, ...] = ()
    table2: tuple[LargeTextResult, ...] = ()

    def __post_init__(self) -> None:
        for name in ("figure2", "figure3", "figure4", "figure5"):
            check_one_text(name, getattr(self, name))
        check_one_sweep(self.figure3)
        check_shared_epochs(self.figure4)
        check_equal_conditions(self.table2)
        check_equal_convergence(self.table2)
        check_equal_tests(self.table2)

    @classmethod
    def read(cls, folder: Path) -> "PaperResults":
        """Read the files of a folder; `ValueError` names the file and line of a mistake."""
        figure2, figure5 = (read_results(folder, f"figure{n}", TunedResult) for n in (2, 5))
        figure3 = read_results(folder, "figure3", SweepPoint)
        figure4 = read_results(folder, "figure4", TrainingCurve)
        table2 = read_results(folder, "table2", LargeTextResult)
        try:
            return cls(
                figure2=figure2, figure3=figure3, figure4=figure4, figure5=figure5, table2=table2
            )
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error
