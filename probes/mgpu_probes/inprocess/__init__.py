"""What runs inside a training rank. Standard library alone, Python >=3.10."""
