"""Corpora: text as arrays of classes, prepared once and memory-mapped afterwards.

corpus = prepare("ptb", "data/ptb", source="downloads/ptb")     # or any text file or folder
corpus = Corpus.open("data/ptb")
tokens = corpus.split("train")                                  # the classes of all words in a row
corpus.vocabulary.words[tokens[0]]
"""

from zloss_lab.corpora.catalogue import CATALOGUE as CATALOGUE
from zloss_lab.corpora.corpus import Corpus as Corpus
from zloss_lab.corpora.errors import CorpusError as CorpusError
from zloss_lab.corpora.errors import MissingCorpusError as MissingCorpusError
from zloss_lab.corpora.preparing import prepare as prepare
from zloss_lab.corpora.vocabulary import Vocabulary as Vocabulary
