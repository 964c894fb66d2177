"""Search the values of a function's arguments, or of a recipe, with trials over unequal devices.

In: an objective, a space. Out: the best values, and what every trial was like. Optuna samples, prunes and stores.
"""
