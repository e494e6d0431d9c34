"""Tests of a whole service: one stack of two compactors for all of them."""
