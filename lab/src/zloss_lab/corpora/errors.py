"""The exceptions of corpora."""


class CorpusError(ValueError):
    """A corpus that cannot be found, read, prepared or opened. The message says why, and what to do."""


class MissingCorpusError(CorpusError):
    """A folder without a prepared corpus. The caller may add to the message why it looked there."""
