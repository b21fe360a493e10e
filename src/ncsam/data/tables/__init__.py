"""Tables: columns, files of rows, and labels by several annotators."""
