"""The options of the function `prepare` and of the command `zloss data prepare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from zloss_lab.corpora.errors import CorpusError


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """Options for the preparation of a corpus. None stands for the default of the corpus.

    Args:
        source: the folder with the files or the archive of a named corpus. Without it they are downloaded.
        valid: your own file for validation. A split without a file is cut off the end of the text.
        test: your own file for the test.
        fractions: shares of the text that are cut off for the valid and the test split; 0 for no such split.
        min_count: words that occur less often are dropped.
        max_words: largest size of the vocabulary, with special words.
        whole_vocabulary: take the words of all splits, as is usual for text8, instead of the training split alone.
        lines: the end of a line becomes the word `<eos>`. With False it has no meaning.
        tokenizer: "whitespace" for text that is tokenized already, "english" for plain text.
        check_counts: refuse files of a named corpus if their number of words is not the expected one.
    """

    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="folder with the files or the archive of a named corpus; without it they are downloaded",
        ),
    ] = None
    valid: Annotated[
        Path | None, typer.Option(help="your own file for validation; else the end of the text")
    ] = None
    test: Annotated[
        Path | None, typer.Option(help="your own file for the test; else the end of the text")
    ] = None
    fractions: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="VALID TEST",
            help="shares of your text, from 0 to 1, that are cut off its end for validation and test",
            show_default="0.05 0.05",
        ),
    ] = None
    min_count: Annotated[
        int | None,
        typer.Option(
            help="least number of occurrences; rarer words become the unknown word",
            show_default="1; 3 for lm1b",
        ),
    ] = None
    max_words: Annotated[
        int | None,
        typer.Option(help="largest number of words in the vocabulary", show_default="no limit"),
    ] = None
    whole_vocabulary: Annotated[
        bool | None,
        typer.Option(
            help="take the words of all splits, as is usual for text8; else the words of the training split"
        ),
    ] = None
    lines: Annotated[
        bool | None,
        typer.Option(
            help="the end of a line in your text becomes the word <eos>", show_default="lines"
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="whitespace, or english for your own plain text", show_default="whitespace"
        ),
    ] = None
    check_counts: Annotated[
        bool,
        typer.Option(
            help="refuse files of a named corpus if their number of words is not the expected one"
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
        """Return the values of the named options that were given."""
        options = {name: getattr(self, name) for name in names}
        return {name: value for name, value in options.items() if value is not None}
