"""The paper's tables, ablations, curves from one command: our numbers beside the paper's."""

from ncsam.reproduce.run import reproduce
from ncsam.reproduce.tables import TABLES, choose, find

__all__ = ["TABLES", "choose", "find", "reproduce"]
