"""Reinforcement learning on control tasks and language models with one loop."""

__version__ = "0.1.0"
