"""The localization engine: learns transfer scores on the source and finds a box for every tag of the target."""
