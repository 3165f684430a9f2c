"""Reading websites: safe requests, robots.txt, sitemaps, the pages of a site and the outcome of each page."""
