"""Tests that bring their own parts of a service to one Ray, or the command that starts them."""
