"""The paper's tables, ablations, curves and cost from one command: ours beside the paper's figures."""

from ncsam.reproduce.run import reproduce
from ncsam.reproduce.tables import TABLES, choose, find

__all__ = ["TABLES", "choose", "find", "reproduce"]
