"""The checks of lesson 17."""
