"""Few-shot estimators with scikit-learn's interface."""
