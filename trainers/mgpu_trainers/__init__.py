"""Built-in trainers: ordinary training programs that get examined; they know no doctor."""
