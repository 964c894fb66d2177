"""hetero: the runtime for machines whose processors are unequal. Public names only, loaded when first used."""
