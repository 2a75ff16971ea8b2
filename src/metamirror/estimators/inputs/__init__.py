"""Examples and targets as users have them, made into tensors."""
