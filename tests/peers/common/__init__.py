"""Code that is shared by the tests that run other projects."""
