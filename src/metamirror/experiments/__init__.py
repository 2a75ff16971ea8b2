"""What is asked of trained runs."""
