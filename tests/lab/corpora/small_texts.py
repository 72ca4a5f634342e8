"""Small texts to prepare."""

TRAIN = "the cat sat on the mat\n\n the dog saw the cat \nno end"
