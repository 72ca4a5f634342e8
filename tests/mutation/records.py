"""The outcomes of mutants, their record, and the reasons why some mutants survive."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.mutation_table import RECORD, MutationScore, read_scores
from tests.mutation.mutants import Mutant
from tests.mutation.scope import TARGETS, Target
from zloss_lab.records import provenance, write_records

SURVIVORS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Outcome:
    """The fate of a mutant, and the test that has failed; None if none has."""

    mutant: Mutant
    killer: str | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A reason why no test can notice some mutants, each written as `function: change`."""

    file: str
    reason: str
    mutants: tuple[str, ...]


def explanations() -> list[Explanation]:
    """Return the reasons of all survivors."""
    entries = tomllib.loads(SURVIVORS.read_text("utf-8"))["survivors"]
    return [Explanation(**{**entry, "mutants": tuple(entry["mutants"])}) for entry in entries]


def summary(target: Target, outcomes: Sequence[Outcome], *, killers: bool = False) -> str:
    """Return the figures of a module as text; with `killers`, how many mutants each test file has killed."""
    killed = [one.killer for one in outcomes if one.killer is not None]
    share = len(killed) / max(1, len(outcomes))
    lines = [f"{target.file}: {len(killed)} of {len(outcomes)} mutants killed, {share:.1%}"]
    if killers:
        files = Counter(killer.partition("::")[0] for killer in killed)
        lines += [f"  {count:5} {name}" for name, count in files.most_common()]
    return "\n".join(lines)


def rewrite_record(target: Target, outcomes: Sequence[Outcome]) -> None:
    """Replace the score of one module."""
    survivors = sorted(one.mutant.name for one in outcomes if one.killer is None)
    scores = {one.file: one for one in read_scores()} if RECORD.exists() else {}
    scores[target.file] = MutationScore(
        file=target.file,
        mutants=len(outcomes),
        survivors=tuple(survivors),
        commit=provenance(torch.device("cpu"))["commit"],
    )
    write_records(RECORD, [scores[one.file] for one in TARGETS if one.file in scores])
