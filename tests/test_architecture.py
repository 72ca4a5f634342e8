"""The shape of the package, checked: which module may import which, what outsiders it needs, and what it promises."""

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import zloss

PACKAGE = Path(zloss.__file__).parent

# From the bottom up: a module imports from earlier lines only, never from its own line or from later ones.
LAYERS = (
    ("zloss.capture", "zloss.kernels", "zloss.parallel"),
    ("zloss.kernels.tiles",),
    (
        "zloss.kernels.block_linear",
        "zloss.kernels.cluster_softmax",
        "zloss.kernels.factored_statistics",
        "zloss_lab.kernels.ngrams",
        "zloss.kernels.rank_count",
        "zloss_lab.kernels.rectified",
        "zloss.kernels.row_update",
        "zloss.kernels.spherical_losses",
    ),
    ("zloss.kernels.factored_update",),
    ("zloss.targets",),
    ("zloss.stats",),
    ("zloss.losses.reduction",),
    ("zloss.losses.loss",),
    ("zloss.losses.spherical",),
    ("zloss.losses.dense",),
    ("zloss.losses",),
    ("zloss.layers.limits", "zloss.precision"),
    ("zloss.layers.faults",),
    ("zloss.layers.gradient",),
    ("zloss.layers.recording",),
    ("zloss.layers.update",),
    ("zloss.layers.conditioning",),
    ("zloss.layers.foreign_writes",),
    ("zloss.layers.fused",),
    ("zloss.layers.weight",),
    ("zloss.layers.portable",),
    ("zloss.layers.statistics",),
    ("zloss.layers.ranking",),
    ("zloss.inputs",),
    ("zloss.layers.prediction",),
    ("zloss.layers.dense", "zloss.layers.factored"),
    ("zloss.layers.gram",),
    ("zloss.layers",),
    ("zloss.metrics", "zloss.optim"),
    ("zloss.heads.blocks", "zloss.heads.class_order", "zloss.heads.softmax"),
    ("zloss.heads.cluster_log_prob", "zloss.heads.clustering", "zloss.heads.samplers"),
    ("zloss.heads.head",),
    ("zloss.heads.linear",),
    (
        "zloss.heads.adaptive",
        "zloss.heads.dense",
        "zloss.heads.hierarchical",
        "zloss.heads.sampled",
        "zloss.heads.spherical",
    ),
    ("zloss.heads.config",),
    ("zloss.heads",),
    ("zloss",),
    ("zloss_lab",),
    (
        "zloss_lab.configuration",
        "zloss_lab.corpora.errors",
        "zloss_lab.durable",
        "zloss_lab.hidden",
        "zloss_lab.permutation",
        "zloss_lab.starting",
        "zloss_lab.stopwatch",
        "zloss_lab.synthetic",
        "zloss_lab.terminal",
    ),
    (
        "zloss_lab.comparison",
        "zloss_lab.corpora.reading",
        "zloss_lab.corpora.tokenizing",
        "zloss_lab.corpora.vocabulary",
        "zloss_lab.networks",
        "zloss_lab.ngrams",
        "zloss_lab.records",
        "zloss_lab.runs",
    ),
    (
        "zloss_lab.corpora.catalogue",
        "zloss_lab.corpora.corpus",
        "zloss_lab.corpora.encoding",
        "zloss_lab.evaluation",
        "zloss_lab.million",
    ),
    ("zloss_lab.corpora.fetching", "zloss_lab.plotting"),
    ("zloss_lab.corpora.locating",),
    ("zloss_lab.corpora.building",),
    ("zloss_lab.corpora.preparing",),
    ("zloss_lab.corpora",),
    (
        "zloss_lab.training.config",
        "zloss_lab.training.interrupts",
        "zloss_lab.training.progress",
        "zloss_lab.training.state",
    ),
    ("zloss_lab.training.assembly", "zloss_lab.training.schedule"),
    ("zloss_lab.training.trainer",),
    ("zloss_lab.training.fitting",),
    ("zloss_lab.training",),
    (
        "zloss_lab.sidebyside.batches",
        "zloss_lab.sidebyside.dropout",
        "zloss_lab.sidebyside.losses",
        "zloss_lab.sidebyside.trials",
        "zloss_lab.sidebyside.weights",
    ),
    ("zloss_lab.sidebyside.network",),
    ("zloss_lab.sidebyside.ranking",),
    ("zloss_lab.sidebyside.training",),
    ("zloss_lab.sidebyside",),
    ("zloss_lab.display", "zloss_lab.experiments", "zloss_lab.models"),
    ("zloss_lab.demo",),
    (
        "zloss_lab.bench",
        "zloss_lab.bench.inputs",
        "zloss_lab.bench.peers",
        "zloss_lab.bench.provenance",
    ),
    ("zloss_lab.bench.entries", "zloss_lab.bench.report", "zloss_lab.bench.timing"),
    ("zloss_lab.bench.steps",),
    ("zloss_lab.bench.cases", "zloss_lab.bench.gate"),
    ("zloss_lab.bench.data_suite", "zloss_lab.bench.layer_suite", "zloss_lab.bench.memory"),
    (
        "zloss_lab.bench.model_suite",
        "zloss_lab.bench.profiling",
        "zloss_lab.bench.race",
        "zloss_lab.bench.ranking_suite",
    ),
    ("zloss_lab.bench.commands",),
    ("zloss_lab.bench.__main__",),
    (
        "reproduction.report",
        "reproduction.report.intervals",
        "reproduction.report.tables",
        "reproduction.report.timings",
    ),
    ("reproduction.report.page", "reproduction.report.scores"),
    ("reproduction.report.duels", "reproduction.report.published", "reproduction.report.records"),
    ("reproduction.report.evidence",),
    ("reproduction.report.verdicts",),
    (
        "reproduction.report.corpus_checks",
        "reproduction.report.loss_checks",
        "reproduction.report.parameter_checks",
        "reproduction.report.property_checks",
        "reproduction.report.speed_checks",
    ),
    ("reproduction.report.claims",),
    ("reproduction.report.results",),
    ("reproduction.report.final_scores",),
    ("reproduction.report.in_time",),
    (
        "reproduction.report.documents",
        "reproduction.report.figures",
        "reproduction.report.methods",
        "reproduction.report.summary",
    ),
    ("reproduction.report.topics",),
    ("reproduction.report.report",),
    ("reproduction.report.commands",),
    (
        "zloss_lab.tuning",
        "zloss_lab.tuning.evaluators",
        "zloss_lab.tuning.space",
        "zloss_lab.tuning.workers",
    ),
    ("zloss_lab.tuning.plan", "zloss_lab.tuning.sampling", "zloss_lab.tuning.trials"),
    (
        "zloss_lab.tuning.pruning",
        "zloss_lab.tuning.recipe",
        "zloss_lab.tuning.storage",
        "zloss_lab.tuning.transfer",
    ),
    ("zloss_lab.tuning.rounds",),
    ("zloss_lab.tuning.study",),
    ("zloss_lab.tuning.display",),
    ("zloss_lab.tuning.commands",),
    (
        "reproduction.experiments",
        "reproduction.experiments.chosen",
        "reproduction.experiments.ledger",
        "reproduction.experiments.stacks",
    ),
    (
        "reproduction.experiments.collecting",
        "reproduction.experiments.display",
        "reproduction.experiments.models",
        "reproduction.experiments.studies",
    ),
    ("reproduction.experiments.processes", "reproduction.experiments.sources"),
    (
        "reproduction.experiments.large_texts",
        "reproduction.experiments.losses",
        "reproduction.experiments.parameters",
    ),
    ("reproduction.experiments.at_once",),
    ("reproduction.experiments.commands",),
    ("zloss_lab.cli",),
    ("zloss_lab.__main__",),
)
HEIGHT = {module: height for height, modules in enumerate(LAYERS) for module in modules}
MAY_USE_TRITON = "kernels"
STRANGERS = ("losses", "layers")  # they meet in SphericalStats and know nothing else of each other
SAYS_NOTHING = {"utils", "common", "misc", "helpers"}


def module_name(path: Path) -> str:
    parts = ("zloss", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def absolute_imports(tree: ast.AST) -> Iterator[str]:
    """The modules that the code imports, relative ones left out; `from zloss.layers import dense` names the last."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in HEIGHT else str(node.module)


def top_level(module: str) -> str:
    return module.partition(".")[0]


def subpackage(module: str) -> str:
    return ".".join(module.split(".")[1:2])


def direction_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Imports of our own modules that do not point down."""
    for imported in absolute_imports(tree):
        if top_level(imported) != "zloss":
            continue
        if imported not in HEIGHT:
            yield f"{module} imports {imported}, which is no module of ours"
        elif HEIGHT[imported] >= HEIGHT[module]:
            yield f"{module} imports {imported}, which is not below it in LAYERS"
        elif {subpackage(module), subpackage(imported)} == set(STRANGERS):
            yield f"{module} imports {imported}: {' and '.join(STRANGERS)} must not know each other"


def form_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Relative imports, and imports of our own package that hide inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{module} has a relative import in line {node.lineno}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for imported in absolute_imports(node):
                if top_level(imported) == "zloss":
                    yield f"{module} imports {imported} inside a function, line {node.lineno}"


def outsider_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Outside the lab: anything but the standard library and torch, and triton in the kernels."""
    if subpackage(module) == "lab":
        return
    allowed = (
        {"torch", "zloss", "triton"} if subpackage(module) == MAY_USE_TRITON else {"torch", "zloss"}
    )
    for imported in absolute_imports(tree):
        if top_level(imported) not in sys.stdlib_module_names | allowed:
            yield f"{module} imports {imported}: only the lab may use more than the standard library and torch"


def import_faults(module: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return [
        fault
        for check in (direction_faults, form_faults, outsider_faults)
        for fault in check(module, tree)
    ]


def test_every_module_has_its_place() -> None:
    assert sorted(SOURCES.keys() - HEIGHT.keys()) == [], (
        "new modules: add each to LAYERS in this file, on the lowest line that is above all that it imports"
    )
    assert sorted(HEIGHT.keys() - SOURCES.keys()) == [], (
        "modules that are gone: take them out of LAYERS in this file"
    )


@pytest.mark.parametrize("module", [module for module in SOURCES if module in HEIGHT])
def test_imports_point_down(module: str) -> None:
    assert import_faults(module, SOURCES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", SOURCES)
def test_module_names_say_something(module: str) -> None:
    assert SAYS_NOTHING.isdisjoint(module.split("."))


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("zloss.stats", "from zloss.losses import ZLoss", "not below it"),
        ("zloss.stats", "import zloss", "not below it"),
        (
            "zloss.layers.dense",
            "from zloss.layers import factored",
            "zloss.layers.factored, which is not below it",
        ),
        (
            "zloss.layers.factored",
            "from zloss.losses.reduction import reduce_loss",
            "must not know each other",
        ),
        ("zloss.optim", "from zloss_lab.demo import run_demo", "not below it"),
        ("zloss.optim", "import zloss.nowhere", "no module of ours"),
        (
            "zloss.optim",
            "def f():\n    from zloss.stats import SphericalStats",
            "inside a function",
        ),
        ("zloss.optim", "from .stats import SphericalStats", "relative import"),
        ("zloss.metrics", "import numpy.linalg", "only the lab"),
        ("zloss.metrics", "if True:\n    from rich import print", "only the lab"),
        ("zloss.heads.blocks", "import triton", "only the lab"),
    ],
)
def test_the_import_checker_sees(module: str, source: str, fault: str) -> None:
    assert [fault in message for message in import_faults(module, source)] == [True]


def test_the_import_checker_accepts_what_is_right() -> None:
    source = (
        "import math\nimport torch\nfrom torch import nn\nfrom zloss.stats import SphericalStats\n"
    )
    assert import_faults("zloss.layers.dense", source) == []
    assert import_faults("zloss_lab.demo", "import rich\nfrom zloss import ZLoss") == []


# ---- torch alone -----------------------------------------------------------------------------------------------------

TRAIN_WITH_TORCH_ALONE = '''
import sys

class OnlyTorch:
    """A finder that does not find what is not allowed, as if it were not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        # _sysconfigdata_* belongs to the standard library too, under a name made up of the platform's.
        if name.partition(".")[0] in allowed or name.startswith("_sysconfigdata_"):
            return self.finder.find_spec(name, path, target)

allowed = set(sys.argv[1:])
sys.meta_path[:] = map(OnlyTorch, sys.meta_path)
try:
    import numpy
except ModuleNotFoundError:
    pass
else:
    sys.exit("numpy was not blocked")

import torch
import zloss

layer = zloss.FactoredLinear(4, 50)
optimizer = zloss.FactoredSGD(layer, lr=1.0)
loss = zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(3, 4), torch.tensor([0, 49, 7])))
loss.backward()
optimizer.step()
print("stepped", layer.topk(torch.randn(3, 4), 2)[1].shape)
'''


def packages_of(distribution: str) -> set[str]:
    """The top-level packages of a distribution and of all that it needs, extras left out."""
    owners = importlib.metadata.packages_distributions()
    packages: set[str] = set()
    waiting, seen = [canonical(distribution)], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        packages |= {package for package, names in owners.items() if name in map(canonical, names)}
        waiting += [canonical(requirement) for requirement in requirements(name)]
    return packages


def requirements(distribution: str) -> list[str]:
    try:
        declared = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # needed on other platforms only
        return []
    return [
        requirement for requirement in declared if "extra ==" not in requirement.partition(";")[2]
    ]


def canonical(requirement: str) -> str:
    """`Typing_Extensions>=4` -> `typing-extensions`."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, f"no name in the requirement {requirement!r}"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def test_torch_is_all_that_the_library_needs() -> None:
    allowed = set(sys.stdlib_module_names) | packages_of("torch") | {"zloss"}
    assert "torch" in allowed
    assert allowed.isdisjoint({"numpy", "rich", "pytest"})
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_WITH_TORCH_ALONE, *sorted(allowed)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "stepped torch.Size([3, 2])\n"), done.stderr


def test_importing_the_library_brings_no_compiler() -> None:
    """Each takes seconds, and Triton asks once, when it is imported, whether it shall interpret."""
    code = "import sys, zloss; print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"


# ---- names -----------------------------------------------------------------------------------------------------------

# All that may be given by position, and hyper-parameters, which may not; there may be more of these.
SIGNATURES: dict[str, tuple[str, str]] = {
    "CapturedStep": ("step", "optimizers"),
    "SphericalStats": ("target sum sumsq num_classes", "valid"),
    "SphericalStats.from_logits": ("logits target", "ignore_index"),
    "SphericalStats.from_moments": ("target mean scatter num_classes", "valid"),
    "z_loss": ("stats", "a b"),
    "squared_error": ("stats", ""),
    "taylor_softmax": ("stats", ""),
    "spherical_softmax": ("stats", "eps"),
    "SphericalLoss": ("", "reduction ignore_index"),
    "ZLoss": ("", "a b reduction ignore_index"),
    "SquaredError": ("", "reduction ignore_index"),
    "TaylorSoftmax": ("", "reduction ignore_index"),
    "SphericalSoftmax": ("", "eps reduction ignore_index"),
    "SigmoidCrossEntropy": ("", "reduction ignore_index"),
    "SoftmaxCrossEntropy": ("", "reduction ignore_index"),
    "ZNormalized": ("loss", "a"),
    "DenseLinear": ("in_features num_classes", "bias device dtype ignore_index"),
    "FactoredLinear": (
        "in_features num_classes",
        "bias device dtype state_dtype ignore_index max_condition synchronous",
    ),
    "FactoredLinear.weight": ("self", ""),
    "FactoredLinear.logits": ("self h", ""),
    "FactoredLinear.topk": ("self h k", "block_size"),
    "FactoredLinear.rank": ("self h target", "block_size"),
    "FactoredLinear.to_linear": ("self", ""),
    "FactoredLinear.from_linear": ("linear", "options"),
    "FactoredLinear.refactor": ("self", ""),
    "FactoredLinear.condition": ("self", ""),
    "FactoredLinear.grad_norm": ("self", ""),
    "FactoredSGD": ("layers lr", "weight_decay"),
    "RowSGD": ("params lr", ""),
    "clip_grad_norm_": ("params_and_layers max_norm", "error_if_nonfinite"),
    "gather_batch": ("h target", "group"),
    "GramLinear": ("in_features num_classes", "bias device dtype ignore_index"),
    "Head": ("in_features num_classes", "ignore_index"),
    "Head.forward": ("self h target", "weight"),
    "Head.topk": ("self h k", "block_size"),
    "Head.rank": ("self h target", "block_size"),
    "Head.log_prob": ("self h", ""),
    "Head.target_log_prob": ("self h target", ""),
    "Head.perplexity": ("self h target", ""),
    "Head.sgd": ("self lr", "weight_decay"),
    "DenseOutput": ("in_features num_classes", "loss softmax bias device dtype"),
    "DenseOutput.logits": ("self h", ""),
    "SphericalOutput": ("layer loss", ""),
    "HierarchicalSoftmax": (
        "in_features num_classes",
        "clusters counts bias implementation exact_rows reduction ignore_index device dtype",
    ),
    "AdaptiveSoftmax": (
        "in_features num_classes",
        "cutoffs div_value head_bias counts reduction ignore_index device dtype",
    ),
    "SampledSoftmax": (
        "in_features num_classes",
        "num_samples sampler counts power loss remove_accidental_hits generator bias reduction ignore_index",
    ),
    "UniformSampler": ("num_classes", "device"),
    "LogUniformSampler": ("num_classes", "counts device"),
    "UnigramSampler": ("counts", "power device"),
    "Clustering": ("order sizes", ""),
    "HeadConfig": ("", "head loss options reduction ignore_index"),
    "HeadConfig.build": ("self in_features num_classes", "counts device dtype"),
    "softmax_implementations": ("device", ""),
    "Perplexity": ("", ""),
    "TopKError": ("k", ""),
    "MeanReciprocalRank": ("", ""),
    "RefusedStepError": ("message safe_lr", ""),
}
# Methods whose meaning is that of nn.Module; the class documents what its own do.
DOCUMENTED_BY_TORCH = {"forward", "extra_repr"}


def public_names(owner: object) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(owner).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def by_position(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.VAR_POSITIONAL,
    )


def methods_without_docstring(cls: type) -> list[str]:
    """The public methods and properties that our own classes give `cls` and that none of these classes documents."""
    own_classes = [
        base for base in cls.__mro__ if top_level(base.__module__) == top_level(cls.__module__)
    ]
    methods = {
        name: any(vars(base)[name].__doc__ for base in own_classes if name in vars(base))
        for own_class in own_classes
        for name, value in public_names(own_class).items()
        if callable(value) or isinstance(value, property | classmethod | staticmethod)
    }
    return [name for name, told in methods.items() if not told and name not in DOCUMENTED_BY_TORCH]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    positional, keyword_only = SIGNATURES[name]
    parameters = inspect.signature(attrgetter(name)(zloss)).parameters
    assert [
        key for key, parameter in parameters.items() if by_position(parameter)
    ] == positional.split()
    assert set(keyword_only.split()) <= parameters.keys() - set(positional.split())


def test_every_public_name_has_a_signature_here() -> None:
    assert sorted(public_names(zloss)) == sorted(name for name in SIGNATURES if "." not in name), (
        "add a new public name, with its parameters, to SIGNATURES in this file"
    )


@pytest.mark.parametrize("name", public_names(zloss))
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(zloss, name)
    assert value.__doc__
    if inspect.isclass(value):
        assert methods_without_docstring(value) == []


def test_missing_docstrings_are_seen() -> None:
    class Base:
        def told(self) -> None:
            """Documented here, and so wherever it is overridden."""

    class Derived(Base):
        def told(self) -> None: ...

        def untold(self) -> None: ...

        @property
        def bare(self) -> int:
            return 0

    assert methods_without_docstring(Derived) == ["untold", "bare"]
