"""What the tests beside other projects share."""
