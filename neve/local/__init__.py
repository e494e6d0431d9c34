"""The embedded stack: Redis, Ray and the actors of Névé on one machine.

`LocalStack` starts and ends it. Everything it starts carries a mark in its
environment, listens on the loopback address only, and is ended again by its own
mark: other Redis servers and Ray clusters of the machine are never touched.
Nothing here imports Ray; what needs it runs in a short-lived process (`actors`).
"""

from neve.local.options import StackOptions
from neve.local.stack import LocalStack

__all__ = ["LocalStack", "StackOptions"]
