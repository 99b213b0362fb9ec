"""Starting, attaching to, examining and stopping jobs from the screen."""
