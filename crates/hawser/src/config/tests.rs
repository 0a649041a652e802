//! Whole configurations: errors with their places, inheritance, the registry against the reference.
