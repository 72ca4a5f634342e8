"""The commands `zloss data list`, `prepare` and `info`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from zloss_lab.command_options import AsJson, with_options
from zloss_lab.corpora.catalogue import CATALOGUE
from zloss_lab.corpora.corpus import Corpus
from zloss_lab.corpora.corpus_table import corpus_table
from zloss_lab.corpora.preparation_options import PreparationOptions
from zloss_lab.corpora.preparing import prepare
from zloss_lab.progress_bars import byte_bar
from zloss_lab.terminal import console, errors, print_plainly, rows_table

data = typer.Typer(help="Prepare corpora and look at them.", no_args_is_help=True)


@data.command("list")
def list_corpora(as_json: AsJson = False) -> None:
    """List the corpora that have a name."""
    rows = [{"name": name, "what": entry.title} for name, entry in CATALOGUE.items()]
    if as_json:
        print(json.dumps(rows))
    else:
        console.print(rows_table(rows))


@data.command("prepare")
@with_options
def prepare_corpus(
    corpus: Annotated[
        str, typer.Argument(help="a name from `zloss data list`, or your own text file or folder")
    ],
    folder: Annotated[Path, typer.Option("--to", help="folder for the prepared corpus")],
    options: PreparationOptions,
) -> None:
    """Read a corpus once and write its words as numbers. A second call does nothing.

    \b
        zloss data prepare ptb --to data/ptb                   # downloads the files
        zloss data prepare ptb --to data/ptb --from my/folder  # uses your files
        zloss data prepare a.txt.xz --to data/a --tokenizer english --min-count 3
    """
    with byte_bar(console) as watch:
        prepared = prepare(corpus, folder, progress=watch, **asdict(options))
    console.print(corpus_table(prepared))


@data.command("info")
def corpus_info(
    folder: Annotated[Path, typer.Argument(help="folder of a prepared corpus")],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="read all files and compare their checksums, even if nothing has changed",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the splits and the vocabulary of a prepared corpus."""
    with byte_bar(errors) as watch:
        corpus = Corpus.open(folder, verify=verify, progress=watch)
    if as_json:
        print(json.dumps(corpus.manifest))
        return
    console.print(corpus_table(corpus))
    if verify:
        for entry in (corpus.manifest["vocabulary"], *corpus.manifest["splits"].values()):
            told = f"{entry['words']:,} words, sha256 {entry['sha256']}"
            print_plainly(console, f"verified {entry['file']}: {told}")
