"""YAML recipes of training and search carried out, the worked example, and what is done with the models they save.

In: a file and settings laid over it. Out: a folder with the trained model, its figures and its trace.
"""
