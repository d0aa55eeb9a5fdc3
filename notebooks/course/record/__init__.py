"""Programs that run the lessons' models and solutions on a GPU and record the results that the lessons
show."""
