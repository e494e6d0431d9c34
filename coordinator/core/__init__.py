"""Decisions of the coordinator: no I/O, no clock, no chance, no logging in here."""
