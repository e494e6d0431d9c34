"""The rewrite beside its alternatives: same files, cores, codec and row-group size, one run."""
