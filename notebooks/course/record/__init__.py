"""Programs that record on a GPU what lessons show, with the course's own models and solutions."""
