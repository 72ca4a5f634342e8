"""The one exception of this package."""


class CorpusError(ValueError):
    """A corpus that cannot be had, read, prepared or opened; the message says why and what to do."""
