"""The report: all claims, figures and tables of the paper beside our numbers, from the records alone.

From the records to verdicts:
- `evidence.py`: the results and the timings (`timings.py`), or the command that makes missing ones
- `comparisons.py`, `score_texts.py`: comparisons of two losses, and texts of means over seeds
- `published.py`: the numbers that the paper prints, and its slips
- `claims/`: every claim of the paper with the check that judges it, by the rules in `verdicts.py`

From the evidence to a document without markup, and from there to files, by `zloss_lab.documents`:
- `*_tables.py`, `table_cells.py`, `figures/`: our numbers beside the numbers of the paper
- `summary.py`, `topics.py`, `methods.py`: the sections, which `full_report.py` puts together
- `claims.css`: the look of claims and verdicts on the page; `excerpts.py`: the tables of `docs/`
- `command.py`: the command line
"""
