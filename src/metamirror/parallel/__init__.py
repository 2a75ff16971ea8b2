"""Tasks side by side in processes, and the memory they use."""
