"""The mutated modules, and the tests that have to notice the mutants: those that find most of them come first."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST_KILLED = 0.95  # of the mutants of every module


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module to mutate.

    Args:
        file: its path from the root of the repository.
        tests: files or folders, in the order in which they run.
        scope: the functions, classes and constants that have mutants; None for all.
    """

    file: str
    tests: tuple[str, ...]
    scope: tuple[str, ...] | None = None

    @property
    def path(self) -> Path:
        return ROOT / self.file


_STEP = "tests/layers/test_one_step.py"
_MIXED = "tests/layers/test_mixed_precision.py"
_OPTIMIZERS = ("tests/test_optim.py", "tests/test_clipping.py", "tests/test_grad_scaler.py")
_MARKED = (
    "tests/layers/test_mark.py",
    "tests/layers/test_forgotten.py",
    "tests/test_whole_optimizer.py",
)

# Tests that look at these modules from nearby, and quick ones of whole layers.
TARGETS = (
    Target(file="src/zloss/layers/update.py", tests=(_STEP, _MIXED)),
    Target(
        file="src/zloss/layers/gradient.py",
        tests=(
            _STEP,
            "tests/layers/test_pending_gradient.py",
            "tests/layers/test_gradient_warnings.py",
            "tests/layers/test_zero_grad.py",
            "tests/layers/test_copies.py",
            *_MARKED,
            *_OPTIMIZERS,
        ),
    ),
    Target(
        file="src/zloss/layers/mark.py",
        tests=(*_MARKED, "tests/layers/test_averages.py"),
        scope=("GradientMark", "_NoAverage", "WrittenNorm"),
    ),
    Target(file="src/zloss/layers/gradient_norm.py", tests=(_STEP,)),
    Target(
        file="src/zloss/layers/matrix.py",
        tests=(
            "tests/layers/test_matrix.py",
            "tests/layers/test_integrity.py",
            "tests/layers/test_passes_over_rows.py",
            "tests/layers/test_consistency.py",
            "tests/layers/test_foreign_writes.py",
            "tests/layers/test_averages.py",
        ),
    ),
    Target(
        file="src/zloss/layers/supervisor.py",
        tests=(
            "tests/layers/test_refactor_decisions.py",
            "tests/layers/test_conditioning.py",
            "tests/layers/test_replays.py",
        ),
        scope=(
            "Health",
            "Conditioning",
            "_MAX_SHRINKAGE",
            "_MAX_SCALE",
            "_MOST_OVER_LIMIT",
            "_TRUST",
            "(_HASTY_REFACTORS, _HASTY_STEPS)",
            "_CLASSES_FOR_A_ROW",
            "_MARGIN",
        ),
    ),
    Target(
        file="src/zloss/layers/torch_backend.py",
        tests=(
            "tests/layers/test_passes.py",
            "tests/layers/test_cancelled_products.py",
            "tests/layers/test_linear.py",
            "tests/layers/test_bad_input.py",
            "tests/layers/test_recording.py",
            _MIXED,
            *_OPTIMIZERS,
        ),
        scope=(
            "TorchBackend.__init__",
            "TorchBackend.forward",
            "TorchBackend.backward",
            "_sharpen_cancelled",
            "_MOST_CANCELLATION",
        ),
    ),
    Target(
        file="src/zloss/stats.py",
        tests=(
            "src/zloss/stats.py",
            "tests/test_stats.py",
            "tests/test_stats_details.py",
            "tests/test_stats_arguments.py",
        ),
    ),
)
