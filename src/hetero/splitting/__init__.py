"""`hetero.train.split`: consecutive layers of one model on each of several devices, as a pipeline."""
