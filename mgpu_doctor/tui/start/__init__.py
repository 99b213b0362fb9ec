"""Starting, finding, examining and stopping jobs from inside the live screen."""
