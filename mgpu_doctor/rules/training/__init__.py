"""What is being trained: its weights, loss, samples and batches."""
