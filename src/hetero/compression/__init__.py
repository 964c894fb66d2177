"""`hetero.compress`: a trained model made smaller by pruning and quantisation, its files, and figures of both.

The package has another name than the function, since `hetero.compress` can be only one of the two.
"""
