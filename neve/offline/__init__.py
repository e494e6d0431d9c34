"""What the service would do, without a service: pure functions over a JSON document."""

from neve.offline.plan import plan_offline

__all__ = ["plan_offline"]
