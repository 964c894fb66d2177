"""The own loop by the doors of other frameworks: transformers, Lightning, Keras, JAX."""
