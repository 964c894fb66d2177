"""Facts about devices and models, each with its source: rows of data, read when first asked for."""
