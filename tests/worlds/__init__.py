"""Small worlds with known answers, for the tests of everything that plays worlds."""
