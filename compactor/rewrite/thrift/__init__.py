"""Thrift's compact protocol, as far as Parquet's footers and page headers need it."""
