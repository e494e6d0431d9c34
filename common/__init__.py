"""Vocabulary, contracts and adapters that every part of Névé shares.

What lives here: the model (values), the row rules, the errors, the clock and id
ports, the settings, the plug-in protocols, the wire messages, and the stores over
Redis and memory. Imports no sibling package.
"""
