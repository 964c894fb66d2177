"""`hetero.split`: consecutive layers of one model on each of several devices, as a pipeline.

The package has another name than the function, since `hetero.split` can be only one of the two.
"""
