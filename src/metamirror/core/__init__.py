"""The inner loop and its exchangeable parts."""
