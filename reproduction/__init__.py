"""The reproduction of the Z-loss paper: its experiments, their records and the report. It runs from a checkout.

python -m reproduction run      the experiments: `running`
python -m reproduction report   the page with all claims, figures and tables: `report`

- `results` has the schema of the records, which the experiments write and the report reads.
- `records` has the records themselves.
- `budgets.py`, `large_text_models.py`, `paper_figures.py`, `scores.py` and `timed_parts.py` have the keys of the
  records, and their titles. Both `running` and `report` use them, and do not import each other.
"""
