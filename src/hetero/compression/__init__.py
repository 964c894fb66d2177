"""`hetero.train.compress`: a trained model made smaller by pruning and quantisation, its files, and figures of both."""
