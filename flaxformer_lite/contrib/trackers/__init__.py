"""Sends a run's records to TensorBoard, Weights & Biases or Trackio: `train.trackers`.

Tested against the files that tensorboardX reads, and against the calls that wandb and trackio take.
Not tested: the servers of Weights & Biases and Hugging Face.
"""
