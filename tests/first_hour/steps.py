"""The first hour of a newcomer: what is typed, and what a person then reads.

`HOUR` is the script. A step is a command of `zloss` or a Python program. Add a new one to the list of its kind,
after the steps whose files it uses.
"""

from dataclasses import dataclass

from tests.installed_wheels import first_example


@dataclass(frozen=True, kw_only=True)
class Shell:
    """A command that works.

    Args:
        types: the command, after `zloss`.
        reads: texts of its output.
        finds: files that are there afterwards.
    """

    types: str
    reads: tuple[str, ...] = ()
    finds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShellMistake:
    """A command with a mistake: it ends with an error of one line, has printed nothing else, and has made no file."""

    types: str
    reads: str


@dataclass(frozen=True, kw_only=True)
class Program:
    """A Python program that works."""

    runs: str
    reads: tuple[str, ...] = ()
    finds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProgramMistake:
    """A Python program with a mistake in its last line: it ends there, with an error of one line."""

    runs: str
    error: str  # the name of its type
    reads: str


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A training that Ctrl-C stops after its first line of metrics."""

    types: str
    run: str  # the folder of the run
    reads: str


Step = Shell | ShellMistake | Program | ProgramMistake | Stopped

MODEL = """
import torch
import zloss

trunk = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU())
output = zloss.FactoredLinear(64, 1_000)
loss_of = zloss.ZLoss()
x, target = torch.randn(128, 32), torch.arange(128)
"""


def slip(line: str, reads: str, error: str = "ValueError") -> ProgramMistake:
    """Return a mistake in a line after the model."""
    return ProgramMistake(runs=MODEL + line, error=error, reads=reads)


# ---- Python ----------------------------------------------------------------------------------------------------------

FIRST_SCREEN: list[Step] = [
    Program(runs=first_example() + "print(tuple(classes.shape))", reads=("(128, 10)",)),
]
OWN_DATA: list[Step] = [
    slip(
        "output(trunk(x), target + 990)", "target 1000 is out of range: expected 0 <= target < 1000"
    ),
    slip("output(trunk(x), target - 1)", "target -1 is out of range: expected 0 <= target < 1000"),
    slip("output(trunk(x), target.float())", "target must hold integer class indices, got dtype"),
    slip(
        "output(trunk(x).double(), target)", "h has dtype torch.float64 but the layer holds torch.f"
    ),
    slip("output(x, target)", "h must have shape (B, 64), got (128, 32)"),
    slip(
        "output(trunk(x), target[:127])", "target must have shape (128,) or (128, K), one row per"
    ),
    slip("output(trunk(x * float('nan')), target)", "h has a NaN or an infinity", "NotFiniteError"),
    slip("loss_of(output(trunk(x)), target)", "missing 1 required positional", "TypeError"),
    slip("loss_of(output(trunk(x), target), target)", "target was given twice"),
    slip("zloss.FactoredSGD(trunk, lr=1.0)", "FactoredSGD trains FactoredLinear layers"),
    slip("output.topk(trunk(x), k=2_000)", "k must be between 1 and the number of classes, 1000"),
    slip("zloss.HeadConfig(head='factord')", "unknown head: 'factord'; did you mean 'factored'?"),
    slip(
        "zloss.HeadConfig(head='sampled', options={'num_sample': 3})",
        "unknown option of head 'sampled' with loss 'softmax': 'num_sample'; did you mean 'num_s",
    ),
    slip("zloss.HeadConfig(loss='softmax')", "the factored head cannot train softmax: it sees all"),
]
LOOP = (
    MODEL
    + """
model = torch.nn.ModuleList([trunk, output])
def epoch(optimizer):
    for _ in range(20):
        loss_of(output(trunk(x), target)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
)
OWN_LOOP: list[Step] = [
    ProgramMistake(
        runs=LOOP + "epoch(torch.optim.Adam(model.parameters()))",
        error="ValueError",
        reads="Adam holds the parameters of FactoredLinear(in_features=64, num_classes=1000",
    ),
    ProgramMistake(
        runs=LOOP + "epoch(torch.optim.Adam(trunk.parameters()))",
        error="ValueError",
        reads="an optimizer took a step, and none is there for the gradient of FactoredLinear",
    ),
    Program(
        runs=LOOP
        + """
optimizer = zloss.Optimizer(model, torch.optim.AdamW, lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
before = output.rank(trunk(x), target).float().mean()
for _ in range(3):
    epoch(optimizer)
    schedule.step()
assert output.rank(trunk(x), target).float().mean() < 0.2 * before
print("learnt")
""",
        reads=("learnt",),
    ),
]
EXPORT: list[Step] = [
    Program(
        runs=MODEL
        + """
from safetensors.torch import load_file, save_file

save_file(output.state_dict(), "output.safetensors")
again = zloss.FactoredLinear(64, 1_000)
again.load_state_dict(load_file("output.safetensors"))
assert torch.equal(again.weight(), output.weight())
torch.save(torch.nn.Sequential(trunk, output.to_linear()).state_dict(), "plain.pt")
plain = torch.nn.Sequential(trunk, torch.nn.Linear(64, 1_000, bias=False))
plain.load_state_dict(torch.load("plain.pt"))
best = plain(x).topk(5).indices
assert torch.equal(best, output.topk(trunk(x), k=5)[1])
print("exported")
""",
        reads=("exported",),
        finds=("output.safetensors", "plain.pt"),
    ),
]

# ---- the lab ---------------------------------------------------------------------------------------------------------

SMALL = (
    "--set network.hidden=[16] --set network.embedding=8 --set training.validate_every=40 --set training.log_every=20 "
    "--set training.batch_size=20 --set training.output_lr=0.3"
)
OWN_TEXT: list[Step] = [
    Shell(types="data list", reads=("ptb", "Penn Treebank")),
    ShellMistake(
        types="data prepare word.txt --to data", reads="there is no file or folder word.txt"
    ),
    ShellMistake(
        types="data prepare words.txt --to data --max-words 0", reads="max_words must be a"
    ),
    Shell(types="data prepare words.txt --to data", reads=("train", "valid"), finds=("data",)),
]
OWN_RUN: list[Step] = [
    ShellMistake(types="train runs/z", reads="a new run needs --corpus FOLDER"),
    ShellMistake(types="train runs/z --corpus dat", reads="dat is no prepared corpus"),
    ShellMistake(
        types="train runs/z --corpus data --preset smal",
        reads="unknown preset: 'smal'; did you mean",
    ),
    ShellMistake(
        types="train runs/z --corpus data --set training.epoch=1",
        reads="unknown key: 'epoch'; did you mean 'epochs'?",
    ),
    ShellMistake(
        types="train runs/z --corpus data --set training.lr=fast",
        reads="training.lr must be float, got 'fast'",
    ),
    ShellMistake(
        types="train runs/z --corpus data --set network.head=sampeld",
        reads="unknown head: 'sampeld'; did you mean 'sampled'?",
    ),
    Stopped(
        types=f"train runs/z --corpus data {SMALL} --set training.epochs=2000",
        run="runs/z",
        reads="Go on with: zloss train runs/z --resume",
    ),
    ShellMistake(
        types="train runs/z --corpus data", reads="is not empty: resume the run that is there"
    ),
    Program(
        runs="""
import json
from pathlib import Path

path = Path("runs/z/config.json")
config = json.loads(path.read_text())
done = json.loads(Path("runs/z/metrics.jsonl").read_text().splitlines()[-1])["step"]
config["training"]["steps"] = done + 100
path.write_text(json.dumps(config))
"""
    ),
    Shell(types="train runs/z --resume", reads=("training.steps is", "epoch", "factored")),
    Shell(
        types=f"train runs/softmax --corpus data {SMALL} --set training.steps=80 --set network.head=sampled",
        reads=("sampled", "perplexity"),
    ),
]
COMPARISON: list[Step] = [
    ShellMistake(
        types="runs run", reads="no runs in run: name folders that `zloss train` has made"
    ),
    Shell(types="runs runs", reads=("runs/z", "factored", "runs/softmax", "sampled", "%")),
    ShellMistake(
        types="plot runs --x second", reads="unknown axis: 'second'; did you mean 'seconds'?"
    ),
    ShellMistake(types="plot runs --metric mmr", reads="unknown score: 'mmr'; did you mean 'mrr'?"),
    *(
        Shell(
            types=f"plot runs --x {x} --to {x}.png", reads=(f"wrote {x}.png",), finds=(f"{x}.png",)
        )
        for x in ("seconds", "epochs", "steps")
    ),
    Shell(types="report runs", reads=("wrote runs.html",), finds=("runs.html",)),
    Shell(types="report runs --to runs.md", reads=("wrote runs.md",), finds=("runs.md",)),
]
USE: list[Step] = [
    ShellMistake(
        types="evaluate runs/z --split tset", reads="has no split 'tset', it has train, valid"
    ),
    Shell(
        types="evaluate runs/z --limit 50",
        reads=("most frequent words", "top 10 error", " \N{PLUS-MINUS SIGN} "),
    ),
    ShellMistake(
        types="predict runs/y the", reads="runs/y is not a run: there is no config.json in it"
    ),
    Shell(types="predict runs/z 'the cat sat on' --top 3", reads=("word", "score")),
]

HOUR: list[Step] = [
    *FIRST_SCREEN, *OWN_DATA, *OWN_LOOP, *EXPORT,
    *OWN_TEXT, *OWN_RUN, *COMPARISON, *USE,
]  # fmt: skip
