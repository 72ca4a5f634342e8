"""The lab: corpora, training, tuning and benchmarks for the library `zloss`, which never imports the lab."""
