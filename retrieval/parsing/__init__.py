"""What several formats share: decoding, HTML, tables, titles, front matter."""
