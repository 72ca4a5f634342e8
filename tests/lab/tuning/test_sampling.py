"""The choice of the next hyper-parameters: reproducible, better with time, and equal where trials share them."""

import statistics
from pathlib import Path

from tests.lab.tuning.tiny import ONLY_LR, MadeUp, distance, made_up, settings_of


def test_the_same_seed_draws_the_same(corpus: Path, tmp_path: Path) -> None:
    one, other = (
        settings_of(made_up(corpus, tmp_path / name, trials=12)) for name in ("one", "other")
    )
    assert one == other
    assert settings_of(made_up(corpus, tmp_path / "third", trials=12, seed=1))[0] != one[0]


def test_going_on_is_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    whole = made_up(corpus, tmp_path / "whole", trials=12)
    for trials in (5, 11, 12):
        parts = made_up(corpus, tmp_path / "parts", trials=trials)
    assert settings_of(parts) == settings_of(whole)


def test_the_search_finds_what_is_good(corpus: Path, tmp_path: Path) -> None:
    """Later trials lie closer to the best learning rate than the first ten, which are drawn at random."""
    study = made_up(corpus, tmp_path / "it", trials=24, space=ONLY_LR, prunes=False)
    errors = [trial.value("top_1_error") or 1.0 for trial in study.trials()]
    assert statistics.median(errors[10:]) < 0.7 * statistics.median(errors[:10])


def test_trials_at_once_share_their_shape(corpus: Path, tmp_path: Path) -> None:
    evaluator = MadeUp(distance)
    made_up(corpus, tmp_path / "it", evaluator, at_once=5, trials=32)
    assert [len(experiments) for experiments in evaluator.rounds] == [5] * 6 + [2]
    shapes = [
        {(one.network.embedding, one.network.hidden) for one in experiments}
        for experiments in evaluator.rounds
    ]
    assert all(len(shape) == 1 for shape in shapes)
    assert len(set.union(*shapes)) > 2  # of four: no shape is that of all rounds
    rates = {one.training.lr for experiments in evaluator.rounds for one in experiments}
    assert len(rates) == 32
