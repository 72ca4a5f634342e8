"""The options of `prepare`, which are also the options of `zloss data prepare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from zloss_lab.corpora.errors import CorpusError


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """Options for the preparation of a corpus. An option that is None keeps the default of the corpus.

    Args:
        source: the folder with the files of a named corpus, or with its archive; without it they are downloaded.
        valid: a file of your own to validate on. A split without a file is cut off the end of the text.
        test: a file of your own to test on.
        fractions: shares of the text for the valid and the test split where these are cut off; 0 for no such split.
        min_count: leave out words that occur less often.
        max_words: size of the vocabulary at most, special words included.
        whole_vocabulary: take the words of all splits, as is customary for text8, not of the training split alone.
        lines: whether the end of a line means something and becomes the word `<eos>`.
        tokenizer: "whitespace" for text that is tokenised already, "english" for plain text.
        check_counts: refuse a named corpus that has more or fewer words than is known of it.
    """

    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="the folder that has the files or the archive of a named corpus; else a download",
        ),
    ] = None
    valid: Annotated[
        Path | None, typer.Option(help="a file of yours to validate on; else the end of the text")
    ] = None
    test: Annotated[
        Path | None, typer.Option(help="a file of yours to test on; else the end of the text")
    ] = None
    fractions: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="VALID TEST",
            help="what part of your text is cut off its end to validate and to test on; 0 for none",
            show_default="0.05 0.05",
        ),
    ] = None
    min_count: Annotated[int | None, typer.Option(help="rarer words become the unknown word")] = (
        None
    )
    max_words: Annotated[int | None, typer.Option(help="size of the vocabulary at most")] = None
    whole_vocabulary: Annotated[
        bool | None,
        typer.Option(
            help="words of all splits are classes, as is customary for text8; else those of the training text"
        ),
    ] = None
    lines: Annotated[
        bool | None,
        typer.Option(
            help="whether the end of a line in your text means something", show_default="lines"
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="whitespace, or english for plain text of yours", show_default="whitespace"
        ),
    ] = None
    check_counts: Annotated[
        bool,
        typer.Option(
            help="refuse files of a named corpus that have more or fewer words than is known of it"
        ),
    ] = True

    def __post_init__(self) -> None:
        for name in ("source", "valid", "test"):
            place = getattr(self, name)
            object.__setattr__(self, name, None if place is None else Path(place))
        for name in ("min_count", "max_words"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 1):
                raise CorpusError(f"{name} must be a whole number from 1 on, got {number!r}")
        if self.fractions is not None:
            valid, test = self.fractions
            if not (valid >= 0 and test >= 0 and valid + test < 1):
                raise CorpusError(
                    f"fractions must be two numbers from 0 on whose sum is below 1, got {valid} and {test}"
                )
            object.__setattr__(self, "fractions", (valid, test))

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that were given, with their values."""
        options = {name: getattr(self, name) for name in names}
        return {name: value for name, value in options.items() if value is not None}
