"""The product: settings, database, service, pages, HTTP and command line. `cache` and `retrieval` do not import it."""
