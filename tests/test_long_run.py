import torch

from benchmarks.long_run import ZipfCodes


def draw(task: ZipfCodes, size: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return task.draw(size, torch.Generator().manual_seed(seed))


def test_inputs_are_codes_and_noise() -> None:
    x, target = draw(ZipfCodes(classes=50, inputs=4, noise=0.0, seed=0), 100)
    noisy, same_target = draw(ZipfCodes(classes=50, inputs=4, noise=0.5, seed=0), 100)
    assert torch.equal(target, same_target)
    assert torch.equal(x, ZipfCodes(classes=50, inputs=4, noise=0.0, seed=0).codes[target])
    assert 0.4 < (noisy - x).std().item() < 0.6


def test_frequencies_are_those_of_zipf() -> None:
    classes, size = 20, 100_000
    _, target = draw(ZipfCodes(classes=classes, inputs=1, noise=0.0, seed=0), size)
    share = 1 / torch.arange(1, classes + 1, dtype=torch.float64)
    share /= share.sum()
    # Five standard deviations of a binomial share.
    tolerance = 5 * (share * (1 - share) / size).sqrt()
    assert ((target.bincount(minlength=classes) / size - share).abs() < tolerance).all()


def test_seeds_make_different_tasks_and_examples() -> None:
    task = ZipfCodes(classes=50, inputs=4, noise=0.1, seed=0)
    assert not torch.equal(task.codes, ZipfCodes(classes=50, inputs=4, noise=0.1, seed=1).codes)
    assert not torch.equal(draw(task, 10, seed=1)[0], draw(task, 10, seed=2)[0])
