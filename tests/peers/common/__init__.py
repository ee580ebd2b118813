"""Shared by the tests that run other projects."""
