"""`zloss report`: the reproduction of the paper as one page, from the records alone.

records.py       what the experiments leave behind: one file a figure or table, checked line by line
timings.py       epochs and ratios from the records of `zloss bench`; evidence.py has both, or says what to run
scores.py  intervals.py  duels.py       scores and how they are written; what seeds say; which of two losses is better
published.py     the numbers that the paper prints, and its slips
claims.py        every claim of the paper; verdicts.py the rules; the *_checks.py what each claim is judged by
results.py       the tables (tables.py), in HTML and for docs/results.md (documents.py); figures.py the figures
report.py        the page: summary.py, topics.py and methods.py are its parts, page.py and page.css how it looks
commands.py      the command line
"""
