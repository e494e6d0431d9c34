"""Built-in selectors, one module each; entry point group `neve.selectors`."""
