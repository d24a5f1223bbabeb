"""Pure functions from what was recorded to what was wrong with it: a list of problems, empty when all is well."""
