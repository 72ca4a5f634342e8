"""Corpora: text as arrays of classes, prepared once and memory-mapped afterwards.

A corpus is made from the name of a known corpus, or from any text file or folder:

    corpus = prepare("ptb", "data/ptb", source="downloads/ptb")
    corpus = Corpus.open("data/ptb")
    tokens = corpus.split("train")                                  # the classes of all words, in order
    corpus.vocabulary.words[tokens[0]]
"""

from zloss_lab.corpora.catalogue import CATALOGUE as CATALOGUE
from zloss_lab.corpora.corpus import Corpus as Corpus
from zloss_lab.corpora.errors import CorpusError as CorpusError
from zloss_lab.corpora.errors import MissingCorpusError as MissingCorpusError
from zloss_lab.corpora.preparing import prepare as prepare
from zloss_lab.corpora.vocabulary import Vocabulary as Vocabulary
