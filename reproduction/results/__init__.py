"""The results of the experiments: the schema of the records, their files, and which of them can be compared.

- `schema.py`: a dataclass for each kind of training, which the experiments write and the report reads
- `files.py`: figure2.jsonl and so on, one result a line, checked when it is read and before it is written
- `comparability.py`: one text for a figure, equal conditions for a table
- `paper_results.py`: the results of all figures and tables
"""
