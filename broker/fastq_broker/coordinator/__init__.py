"""The ground that group and transaction coordinators stand on: state in memory, made of the records of an internal topic."""

from .runtime import CoordinatorRuntime as CoordinatorRuntime
from .shard import Shard as Shard
from .shard import ShardContext as ShardContext
