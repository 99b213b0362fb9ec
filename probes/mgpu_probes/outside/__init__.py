"""What looks at a job from outside its processes: one file a source."""
