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
        "zloss.kernels.ngrams",
        "zloss.kernels.rank_count",
        "zloss.kernels.rectified",
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
    ("zloss.layers.limits", "zloss.layers.precision"),
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
    ("zloss.layers.inputs",),
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
    ("zloss.lab",),
    (
        "zloss.lab.configuration",
        "zloss.lab.corpora.errors",
        "zloss.lab.durable",
        "zloss.lab.hidden",
        "zloss.lab.permutation",
        "zloss.lab.starting",
        "zloss.lab.stopwatch",
        "zloss.lab.synthetic",
        "zloss.lab.terminal",
    ),
    (
        "zloss.lab.comparison",
        "zloss.lab.corpora.reading",
        "zloss.lab.corpora.tokenizing",
        "zloss.lab.corpora.vocabulary",
        "zloss.lab.networks",
        "zloss.lab.ngrams",
        "zloss.lab.records",
        "zloss.lab.runs",
    ),
    (
        "zloss.lab.corpora.catalogue",
        "zloss.lab.corpora.corpus",
        "zloss.lab.corpora.encoding",
        "zloss.lab.evaluation",
        "zloss.lab.million",
    ),
    ("zloss.lab.corpora.fetching", "zloss.lab.plotting"),
    ("zloss.lab.corpora.locating",),
    ("zloss.lab.corpora.building",),
    ("zloss.lab.corpora.preparing",),
    ("zloss.lab.corpora",),
    (
        "zloss.lab.training.config",
        "zloss.lab.training.interrupts",
        "zloss.lab.training.progress",
        "zloss.lab.training.state",
    ),
    ("zloss.lab.training.assembly", "zloss.lab.training.schedule"),
    ("zloss.lab.training.trainer",),
    ("zloss.lab.training.fitting",),
    ("zloss.lab.training",),
    (
        "zloss.lab.sidebyside.batches",
        "zloss.lab.sidebyside.dropout",
        "zloss.lab.sidebyside.losses",
        "zloss.lab.sidebyside.trials",
        "zloss.lab.sidebyside.weights",
    ),
    ("zloss.lab.sidebyside.network",),
    ("zloss.lab.sidebyside.ranking",),
    ("zloss.lab.sidebyside.training",),
    ("zloss.lab.sidebyside",),
    ("zloss.lab.display", "zloss.lab.experiments", "zloss.lab.models"),
    ("zloss.lab.demo",),
    ("zloss.lab.bench", "zloss.lab.bench.inputs", "zloss.lab.bench.peers", "zloss.lab.bench.provenance"),
    ("zloss.lab.bench.entries", "zloss.lab.bench.report", "zloss.lab.bench.timing"),
    ("zloss.lab.bench.steps",),
    ("zloss.lab.bench.cases", "zloss.lab.bench.gate"),
    ("zloss.lab.bench.data_suite", "zloss.lab.bench.layer_suite", "zloss.lab.bench.memory"),
    (
        "zloss.lab.bench.model_suite",
        "zloss.lab.bench.profiling",
        "zloss.lab.bench.race",
        "zloss.lab.bench.ranking_suite",
    ),
    ("zloss.lab.bench.commands",),
    ("zloss.lab.bench.__main__",),
    ("zloss.lab.paper", "zloss.lab.paper.intervals", "zloss.lab.paper.tables", "zloss.lab.paper.timings"),
    ("zloss.lab.paper.page", "zloss.lab.paper.scores"),
    ("zloss.lab.paper.duels", "zloss.lab.paper.published", "zloss.lab.paper.records"),
    ("zloss.lab.paper.evidence",),
    ("zloss.lab.paper.verdicts",),
    (
        "zloss.lab.paper.corpus_checks",
        "zloss.lab.paper.loss_checks",
        "zloss.lab.paper.parameter_checks",
        "zloss.lab.paper.property_checks",
        "zloss.lab.paper.speed_checks",
    ),
    ("zloss.lab.paper.claims",),
    ("zloss.lab.paper.results",),
    ("zloss.lab.paper.final_scores",),
    ("zloss.lab.paper.in_time",),
    ("zloss.lab.paper.documents", "zloss.lab.paper.figures", "zloss.lab.paper.methods", "zloss.lab.paper.summary"),
    ("zloss.lab.paper.topics",),
    ("zloss.lab.paper.report",),
    ("zloss.lab.paper.commands",),
    ("zloss.lab.tuning", "zloss.lab.tuning.evaluators", "zloss.lab.tuning.space", "zloss.lab.tuning.workers"),
    ("zloss.lab.tuning.plan", "zloss.lab.tuning.sampling", "zloss.lab.tuning.trials"),
    ("zloss.lab.tuning.pruning", "zloss.lab.tuning.recipe", "zloss.lab.tuning.storage", "zloss.lab.tuning.transfer"),
    ("zloss.lab.tuning.rounds",),
    ("zloss.lab.tuning.study",),
    ("zloss.lab.tuning.display",),
    ("zloss.lab.tuning.commands",),
    (
        "zloss.lab.reproduction",
        "zloss.lab.reproduction.chosen",
        "zloss.lab.reproduction.ledger",
        "zloss.lab.reproduction.stacks",
    ),
    (
        "zloss.lab.reproduction.collecting",
        "zloss.lab.reproduction.display",
        "zloss.lab.reproduction.models",
        "zloss.lab.reproduction.studies",
    ),
    ("zloss.lab.reproduction.processes", "zloss.lab.reproduction.sources"),
    (
        "zloss.lab.reproduction.large_texts",
        "zloss.lab.reproduction.losses",
        "zloss.lab.reproduction.parameters",
    ),
    ("zloss.lab.reproduction.at_once",),
    ("zloss.lab.reproduction.commands",),
    ("zloss.lab.cli",),
    ("zloss.lab.__main__",),
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
    allowed = {"torch", "zloss", "triton"} if subpackage(module) == MAY_USE_TRITON else {"torch", "zloss"}
    for imported in absolute_imports(tree):
        if top_level(imported) not in sys.stdlib_module_names | allowed:
            yield f"{module} imports {imported}: only the lab may use more than the standard library and torch"


def import_faults(module: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return [fault for check in (direction_faults, form_faults, outsider_faults) for fault in check(module, tree)]


def test_every_module_has_its_place() -> None:
    assert sorted(SOURCES.keys() - HEIGHT.keys()) == [], (
        "new modules: add each to LAYERS in this file, on the lowest line that is above all that it imports"
    )
    assert sorted(HEIGHT.keys() - SOURCES.keys()) == [], "modules that are gone: take them out of LAYERS in this file"


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
        ("zloss.layers.factored", "from zloss.losses.reduction import reduce_loss", "must not know each other"),
        ("zloss.optim", "from zloss.lab.demo import run_demo", "not below it"),
        ("zloss.optim", "import zloss.nowhere", "no module of ours"),
        ("zloss.optim", "def f():\n    from zloss.stats import SphericalStats", "inside a function"),
        ("zloss.optim", "from .stats import SphericalStats", "relative import"),
        ("zloss.metrics", "import numpy.linalg", "only the lab"),
        ("zloss.metrics", "if True:\n    from rich import print", "only the lab"),
        ("zloss.heads.blocks", "import triton", "only the lab"),
    ],
)
def test_the_import_checker_sees(module: str, source: str, fault: str) -> None:
    assert [fault in message for message in import_faults(module, source)] == [True]


def test_the_import_checker_accepts_what_is_right() -> None:
    source = "import math\nimport torch\nfrom torch import nn\nfrom zloss.stats import SphericalStats\n"
    assert import_faults("zloss.layers.dense", source) == []
    assert import_faults("zloss.lab.demo", "import rich\nfrom zloss import ZLoss") == []


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
    return [requirement for requirement in declared if "extra ==" not in requirement.partition(";")[2]]


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
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
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)


def methods_without_docstring(cls: type) -> list[str]:
    """The public methods and properties that our own classes give `cls` and that none of these classes documents."""
    own_classes = [base for base in cls.__mro__ if top_level(base.__module__) == top_level(cls.__module__)]
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
    assert [key for key, parameter in parameters.items() if by_position(parameter)] == positional.split()
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
