"""PhoneGrid: a program that an inference engine runs, and how its phone joins a run."""
