"""Reinforcement learning from rewards of the answers that a model writes: GRPO and its relatives.

The objective `grpo` brings its own step (rollout_stepper.py): it draws answers with the weights of
the moment, rewards them, and updates the weights. The trainer knows nothing of it.

Tested against TRL's equations in torch, with its numbers (tests/contrib/rl/grpo.json). Not tested
with answers of more than a few hundred tokens.
"""
