"""Rules about what is trained: weights, loss, samples and batches."""
