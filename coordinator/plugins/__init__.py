"""Built-in plug-ins. They use the same door as others do and look only at `common`."""
