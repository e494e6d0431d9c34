"""Doors for plug-ins: one protocol and one parameter object per kind."""
