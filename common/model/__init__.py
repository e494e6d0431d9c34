"""The model: frozen values without I/O, one module per idea."""
