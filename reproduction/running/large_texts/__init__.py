"""Table 2: models with many classes on a large text.

Each is trained for a fixed time, for some epochs or until it converges.

    chosen_models.py   the experiments that a text and a budget make of large_text_models.toml
    text.py            the text, the budget and all that is equal for its models
    run_folders.py     the folders of trainings, which allow an interrupted one to go on
    learning_rates.py  the choice of a learning rate
    trainings.py       from a model and a seed to a record
    one_by_one.py      the models one after the other
    at_once.py         several trainings at a time
    jobs.py            jobs at the same time, each in a process of its own
    training_bars.py   their bars on the screen
"""
