"""Files on disk: atomic writes, tensors, learners, checkpoints."""
