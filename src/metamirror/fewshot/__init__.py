"""What `metamirror.estimator` is made of: from a handful of examples to a model on disk."""
