"""Built-in dispatchers, one module each; entry point group `neve.dispatchers`."""
