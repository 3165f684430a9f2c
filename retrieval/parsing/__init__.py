"""What several formats share: decoding, zip containers, HTML, tables, front matter."""
