"""Tag: taggers chase runners, on a grid or in the plane."""
