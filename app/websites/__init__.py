"""Reading websites: safe requests, robots.txt, sitemaps, the pages of a site and what is said about each."""
