"""Train one model over unequal devices, with the result that one device would give.

In: a model, a loss, an optimizer, data, devices. Out: the trained model, and what the run was like.
torch is loaded by the modules in here that need it, never by importing this package.
"""
