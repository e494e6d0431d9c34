"""Tests of one service that compacts Delta and Iceberg tables beside other writers."""
