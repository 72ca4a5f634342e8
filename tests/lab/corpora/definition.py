"""A slow definition of the preparation of a corpus, which the fast code is compared with."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from zloss_lab.corpora import Corpus


def words_of(
    text: str, *, boundary: str | None = "<eos>", keep_empty_lines: bool = False
) -> list[str]:
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if boundary is None:
        return [word for line in lines for word in line.split()]
    kept = [line.split() for line in lines if keep_empty_lines or line.split()]
    return [word for words in kept for word in (*words, boundary)]


def by_frequency(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0].encode()))


def classes(
    splits: dict[str, list[str]], *, min_count: int = 1, unknown: str = "<unk>"
) -> dict[str, list[str]]:
    """The words of each split after rare and unseen ones became the unknown word."""
    counts = Counter(splits["train"])
    return {
        split: [word if counts[word] >= min_count or word == "<eos>" else unknown for word in words]
        for split, words in splits.items()
    }


def text_of(corpus: Corpus, split: str) -> list[str]:
    return [corpus.vocabulary.words[index] for index in corpus.split(split)]


def pairs(corpus: Corpus) -> list[tuple[str, int]]:
    return list(zip(corpus.vocabulary.words, corpus.vocabulary.counts.tolist(), strict=True))


def write(folder: Path, files: dict[str, str]) -> Path:
    """Text files by their names, in the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sentences(words: Iterable[str], length: int = 5) -> str:
    """Return the words in lines."""
    all_words = list(words)
    lines = (
        " ".join(all_words[start : start + length]) for start in range(0, len(all_words), length)
    )
    return "".join(line + "\n" for line in lines)
