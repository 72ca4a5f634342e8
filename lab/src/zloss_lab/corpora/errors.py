"""The exceptions of this package."""


class CorpusError(ValueError):
    """A corpus that cannot be had, read, prepared or opened; the message says why and what to do."""


class MissingCorpusError(CorpusError):
    """There is no prepared corpus in a folder. Whoever knows why it is looked for there has more to say."""
